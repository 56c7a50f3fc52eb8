import pytest

from layered_llm.client.errors import ApiError, find_error, read_error_body

BODIES = [
    (
        b'{"error": {"message": "m", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}}',
        ApiError(message="m", type="invalid_request_error", param="n", code="invalid_value"),
    ),
    (
        b'{"error": {"message": "m", "type": "BadRequestError", "param": null, "code": 400}}',
        ApiError(message="m", type="BadRequestError", code="400"),
    ),
    (
        b'{"object": "error", "message": "m", "type": "t", "param": null, "code": 400}',
        ApiError(message="m", type="t", code="400"),
    ),
    (b'{"error": "m", "error_type": "validation"}', ApiError(message="m", type="validation")),
    (b'{"error": {"code": 7}}', ApiError(message='{"code": 7}', code="7")),
    (b'{"detail": "m"}', ApiError(message="m")),
    (b'{"detail": [{"loc": ["body"]}]}', ApiError(message='[{"loc": ["body"]}]')),
    (b"<html>Bad Gateway</html>\n", ApiError(message="<html>Bad Gateway</html>")),
    (b"", ApiError(message="(empty body)")),
    (b"[" * 100_000, ApiError(message="[" * 500 + "…")),
    (b"\xff", ApiError(message="\ufffd")),
]


@pytest.mark.parametrize(("body", "expected"), BODIES, ids=range(len(BODIES)))
def test_error_bodies_of_known_servers(body: bytes, expected: ApiError) -> None:
    assert expected == read_error_body(body)


@pytest.mark.parametrize(
    "value", [{"choices": []}, {"error": None, "choices": []}, {"object": "chat.completion.chunk"}, [], None]
)
def test_values_without_an_error(value: object) -> None:
    assert find_error(value) is None
