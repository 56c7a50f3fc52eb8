from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.scheduling.budget import decode_limit, share_chunks


def test_decodes_have_the_whole_step_when_no_prompt_is_under_way() -> None:
    assert decode_limit(64, is_prefilling=False) == 64


def test_a_quarter_of_the_step_is_kept_for_prompts() -> None:
    assert [decode_limit(budget, is_prefilling=True) for budget in (1, 2, 3, 4, 5, 64)] == [1, 1, 2, 3, 3, 48]


def test_no_prompt_no_share() -> None:
    assert share_chunks([], 8) == []


def test_a_lone_prompt_has_the_whole_rest() -> None:
    assert share_chunks([100], 8) == [8]


def test_everybody_gets_everything_when_it_fits() -> None:
    assert share_chunks([3, 2, 1], 8) == [3, 2, 1]


def test_the_oldest_has_half_and_the_shortest_come_next() -> None:
    assert share_chunks([100, 50, 2, 3], 16) == [8, 3, 2, 3]


def test_prompts_of_one_length_go_first_come_first_served() -> None:
    assert share_chunks([10, 10, 10], 14) == [10, 4, 0]


@settings(derandomize=True, deadline=None)
@given(remaining=st.lists(st.integers(1, 50), max_size=12), budget=st.integers(0, 100))
def test_shares_use_the_budget_up_and_exceed_no_prompt(remaining: list[int], budget: int) -> None:
    shares = share_chunks(remaining, budget)

    assert sum(shares) == min(sum(remaining), budget)
    assert all(0 <= share <= left for share, left in zip(shares, remaining, strict=True))


@settings(derandomize=True, deadline=None)
@given(remaining=st.lists(st.integers(1, 50), min_size=1, max_size=12), budget=st.integers(1, 100))
def test_the_oldest_prompt_moves_with_every_share(remaining: list[int], budget: int) -> None:
    assert share_chunks(remaining, budget)[0] >= min(remaining[0], (budget + 1) // 2)
