from functools import partial
from random import Random

import pytest

from layered_llm.scheduling.budget import MIN_PREFILL_TOKENS, Pace, attended_tokens

BASE_US, DECODE_US, PREFILL_US, ATTENDED_US = 4_000, 200, 50, 0.05


def cost_us(prefill_tokens: int, decode_rows: int, start: int = 0) -> int:
    attended_us = ATTENDED_US * attended_tokens(start, prefill_tokens)
    return int(BASE_US + DECODE_US * decode_rows + PREFILL_US * prefill_tokens + attended_us)


def expected_us(pace: Pace, prefill_tokens: int, decode_rows: int, start: int = 0) -> float:
    attended = attended_tokens(start, prefill_tokens)
    return pace.step_us(prefill_tokens=prefill_tokens, attended_tokens=attended, decode_rows=decode_rows)


def measure(pace: Pace, prefill_tokens: int, decode_rows: int, step_us: int, start: int = 0) -> None:
    attended = attended_tokens(start, prefill_tokens)
    pace.measured(prefill_tokens=prefill_tokens, attended_tokens=attended, decode_rows=decode_rows, step_us=step_us)


def limit_of(pace: Pace, decode_rows: int, start: int = 0) -> int:
    return pace.prefill_limit(decode_rows=decode_rows, attended=partial(attended_tokens, start))


def learned(pace: Pace, steps: list[tuple[int, int]], noise: float = 0.0) -> Pace:
    random = Random(1)
    for prefill_tokens, decode_rows in steps:
        step_us = int(cost_us(prefill_tokens, decode_rows) * random.uniform(1 - noise, 1 + noise))
        measure(pace, prefill_tokens, decode_rows, step_us)
    return pace


def mixed_steps(count: int) -> list[tuple[int, int]]:
    random = Random(2)
    return [(random.choice([0, 0, 40, 100, 300]), random.randint(1, 20)) for _ in range(count)]


def test_the_costs_of_a_device_are_learned() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))

    for prefill_tokens, decode_rows in ((0, 1), (0, 30), (200, 10), (500, 2)):
        expected = cost_us(prefill_tokens, decode_rows)
        assert pytest.approx(expected, rel=0.02) == expected_us(pace, prefill_tokens, decode_rows)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_limit_fills_the_gap_and_not_more(noise: float) -> None:
    pace = learned(Pace(20_000), mixed_steps(100), noise)

    for decode_rows in (1, 10, 20):
        assert 0.75 * 20_000 < cost_us(limit_of(pace, decode_rows), decode_rows) <= 20_000


def test_nothing_measured_leaves_the_least() -> None:
    assert MIN_PREFILL_TOKENS == limit_of(Pace(20_000), 1)


def test_a_gap_that_no_step_keeps_leaves_the_least() -> None:
    assert MIN_PREFILL_TOKENS == limit_of(learned(Pace(1_000), mixed_steps(100)), 8)


def test_free_prefill_beside_decodes_that_take_too_long_is_left_the_least() -> None:
    pace = Pace(1_000)

    for _ in range(3):
        measure(pace, 0, 5, 9_000)

    assert MIN_PREFILL_TOKENS == limit_of(pace, 5)


def test_a_step_without_rows_teaches_nothing() -> None:
    pace = Pace(20_000)

    measure(pace, 0, 0, 50_000)

    assert 0 == expected_us(pace, 0, 0)


def test_what_prefill_costs_is_remembered_through_steps_without_any() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))
    before = expected_us(pace, 100, 4)

    learned(pace, [(0, 4)] * 20_000)

    assert pytest.approx(before, rel=0.02) == expected_us(pace, 100, 4)


def test_after_a_time_without_prefill_the_limit_grows_by_steps() -> None:
    pace = learned(Pace(20_000), [*mixed_steps(100), *[(0, 4)] * 500])

    limits = [limit_of(pace, 4)]
    for _ in range(6):
        learned(pace, [(limits[-1], 4)])
        limits.append(limit_of(pace, 4))

    assert [16, 32, 64, 128] == limits[:4]
    assert 15_000 < cost_us(limits[-1], 4) <= 20_000


def test_one_stall_changes_little() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))

    measure(pace, 100, 4, 3_000_000)

    assert expected_us(pace, 100, 4) < 1.3 * cost_us(100, 4)


def test_a_device_that_becomes_slower_for_good_is_learned_anew() -> None:
    pace = learned(Pace(20_000), mixed_steps(100))

    for prefill_tokens, decode_rows in mixed_steps(60):
        measure(pace, prefill_tokens, decode_rows, 5 * cost_us(prefill_tokens, decode_rows))

    assert pytest.approx(5 * cost_us(100, 4), rel=0.1) == expected_us(pace, 100, 4)


def test_a_device_that_takes_no_time_is_not_held_back_for_long() -> None:
    pace = Pace(20_000)

    measure(pace, 400, 0, 0)

    assert 800 == limit_of(pace, 3)


def test_a_chunk_that_reaches_far_back_is_shorter_and_takes_as_long() -> None:
    pace, start = Pace(20_000), 0
    for _ in range(200):
        count = min(limit_of(pace, 1, start), 1_600 - start)
        measure(pace, count, 1, cost_us(count, 1, start), start)
        start = (start + count) % 1_600

    near, far = limit_of(pace, 1), limit_of(pace, 1, 1_400)

    assert far < 0.6 * near
    assert pytest.approx(0.9 * 20_000, rel=0.05) == cost_us(near, 1)
    assert pytest.approx(0.9 * 20_000, rel=0.05) == cost_us(far, 1, 1_400)


def test_the_sums_stay_in_range_however_many_steps_come() -> None:
    pace = learned(Pace(20_000), mixed_steps(20_000))

    assert pytest.approx(cost_us(200, 10), rel=0.02) == expected_us(pace, 200, 10)
