from layered_llm.service.settings.settings import Settings
from layered_llm.service.workers.scheduler import scheduling_policy


def test_the_gap_between_tokens_is_bounded_by_default_and_0_bounds_nothing() -> None:
    gaps_us = [scheduling_policy(settings).max_token_gap_us for settings in (Settings(), Settings(max_token_gap_ms=0))]

    assert [250_000, None] == gaps_us


def test_the_streams_of_a_key_and_of_all_are_bounded_separately() -> None:
    policy = scheduling_policy(Settings(max_streams=9, max_streams_per_key=2))

    assert (9, 2) == (policy.max_streams, policy.max_streams_per_tenant)


def test_the_gap_between_tokens_is_set_in_milliseconds() -> None:
    assert 12_500 == scheduling_policy(Settings(max_token_gap_ms=12.5)).max_token_gap_us


def test_the_time_in_the_queue_is_set_in_seconds() -> None:
    assert (None, 2_500_000) == (
        scheduling_policy(Settings()).max_queue_us,
        scheduling_policy(Settings(queue_timeout_s=2.5)).max_queue_us,
    )


def test_prefixes_are_shared_between_tenants_only_where_the_operator_says_so() -> None:
    shares = [scheduling_policy(Settings(share_prefix_cache=wish)).shares_prefixes for wish in (False, True)]

    assert [False, True] == shares
