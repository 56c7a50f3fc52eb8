import pytest

from layered_llm.service.telling import farewell


@pytest.mark.parametrize(
    ("open_responses", "told"),
    [
        (0, "stopping"),
        (1, "stopping; one open response has 2.5 s to end by itself"),
        (3, "stopping; 3 open responses have 2.5 s to end by themselves"),
    ],
)
def test_only_what_is_open_is_given_time(open_responses: int, told: str) -> None:
    assert told == farewell(open_responses, 2.5)
