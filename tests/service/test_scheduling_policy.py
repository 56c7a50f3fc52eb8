from layered_llm.service.scheduler import scheduling_policy
from layered_llm.service.settings import Settings


def test_no_gap_between_tokens_is_bound_by_default() -> None:
    assert scheduling_policy(Settings()).max_token_gap_us is None


def test_the_gap_between_tokens_is_set_in_milliseconds() -> None:
    assert 12_500 == scheduling_policy(Settings(max_token_gap_ms=12.5)).max_token_gap_us
