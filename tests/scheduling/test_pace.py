from random import Random

import pytest

from layered_llm.scheduling.pace import MIN_PREFILL_TOKENS, Pace

BASE_US, DECODE_US, PREFILL_US = 4_000, 200, 50


def cost_us(prefill_tokens: int, decode_rows: int) -> int:
    return BASE_US + DECODE_US * decode_rows + PREFILL_US * prefill_tokens


def learned(pace: Pace, steps: list[tuple[int, int]], noise: float = 0.0) -> Pace:
    random = Random(1)
    for prefill_tokens, decode_rows in steps:
        step_us = int(cost_us(prefill_tokens, decode_rows) * random.uniform(1 - noise, 1 + noise))
        pace.measured(prefill_tokens=prefill_tokens, decode_rows=decode_rows, step_us=step_us)
    return pace


def mixed_steps(count: int) -> list[tuple[int, int]]:
    random = Random(2)
    return [(random.choice([0, 0, 40, 100, 300]), random.randint(1, 20)) for _ in range(count)]


def test_the_costs_of_a_device_are_learned() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))

    for prefill_tokens, decode_rows in ((0, 1), (0, 30), (200, 10), (500, 2)):
        expected = cost_us(prefill_tokens, decode_rows)
        assert pytest.approx(expected, rel=0.02) == pace.step_us(prefill_tokens=prefill_tokens, decode_rows=decode_rows)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_limit_fills_the_gap_and_not_more(noise: float) -> None:
    pace = learned(Pace(20_000), mixed_steps(100), noise)

    for decode_rows in (1, 10, 20):
        assert 0.75 * 20_000 < cost_us(pace.prefill_limit(decode_rows=decode_rows), decode_rows) <= 20_000


def test_nothing_measured_leaves_the_least() -> None:
    assert MIN_PREFILL_TOKENS == Pace(20_000).prefill_limit(decode_rows=1)


def test_a_gap_that_no_step_keeps_leaves_the_least() -> None:
    assert MIN_PREFILL_TOKENS == learned(Pace(1_000), mixed_steps(100)).prefill_limit(decode_rows=8)


def test_free_prefill_beside_decodes_that_take_too_long_is_left_the_least() -> None:
    pace = Pace(1_000)

    for _ in range(3):
        pace.measured(prefill_tokens=0, decode_rows=5, step_us=9_000)

    assert MIN_PREFILL_TOKENS == pace.prefill_limit(decode_rows=5)


def test_a_step_without_rows_teaches_nothing() -> None:
    pace = Pace(20_000)

    pace.measured(prefill_tokens=0, decode_rows=0, step_us=50_000)

    assert 0 == pace.step_us(prefill_tokens=0, decode_rows=0)


def test_what_prefill_costs_is_remembered_through_steps_without_any() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))
    before = pace.step_us(prefill_tokens=100, decode_rows=4)

    learned(pace, [(0, 4)] * 20_000)

    assert pytest.approx(before, rel=0.02) == pace.step_us(prefill_tokens=100, decode_rows=4)


def test_after_a_time_without_prefill_the_limit_grows_by_steps() -> None:
    pace = learned(Pace(20_000), [*mixed_steps(100), *[(0, 4)] * 500])

    limits = [pace.prefill_limit(decode_rows=4)]
    for _ in range(6):
        learned(pace, [(limits[-1], 4)])
        limits.append(pace.prefill_limit(decode_rows=4))

    assert [16, 32, 64, 128] == limits[:4]
    assert 15_000 < cost_us(limits[-1], 4) <= 20_000


def test_one_stall_changes_little() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))

    pace.measured(prefill_tokens=100, decode_rows=4, step_us=3_000_000)

    assert pace.step_us(prefill_tokens=100, decode_rows=4) < 1.3 * cost_us(100, 4)


def test_a_device_that_becomes_slower_for_good_is_learned_anew() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))

    for prefill_tokens, decode_rows in mixed_steps(60):
        pace.measured(prefill_tokens=prefill_tokens, decode_rows=decode_rows, step_us=5 * cost_us(prefill_tokens, decode_rows))

    assert pytest.approx(5 * cost_us(100, 4), rel=0.1) == pace.step_us(prefill_tokens=100, decode_rows=4)


def test_a_device_that_takes_no_time_is_not_held_back_for_long() -> None:
    pace = Pace(20_000)

    pace.measured(prefill_tokens=400, decode_rows=0, step_us=0)

    assert 800 == pace.prefill_limit(decode_rows=3)
