import pytest

from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema.requests import parse_chat, parse_completion


@pytest.mark.parametrize("field", ["prompt", "suffix"])
def test_no_depth_of_nesting_is_our_own_fault(field: str) -> None:
    for depth in range(900, 1000):  # around the interpreter's limit, which the caller's own depth counts against
        body = f'{{"{field}": [1, {"[" * depth}{"]" * depth}]}}'.encode()

        assert isinstance(parse_chat(body), ApiError)
        assert isinstance(parse_completion(body), ApiError)


def test_a_number_of_any_length_is_quoted_briefly() -> None:
    parsed = parse_completion(b'{"prompt": "a", "max_tokens": ' + b"9" * 4000 + b"}")

    assert isinstance(parsed, ApiError)
    assert parsed.param == "max_tokens"
    assert len(parsed.message) < 300


def test_a_number_with_too_many_digits_is_told_without_words_of_the_interpreter() -> None:
    parsed = parse_completion(b'{"n": ' + b"9" * 5000 + b"}")

    assert isinstance(parsed, ApiError)
    assert parsed.message == "The body holds a number with too many digits."
