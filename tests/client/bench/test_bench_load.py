import math
from itertools import islice, pairwise
from random import Random

import pytest
import trio
import trio.testing

from layered_llm.client.bench.load import ClosedLoop, Limits, OpenLoop, poisson_arrivals, run_closed_loop, run_open_loop
from layered_llm.client.bench.prompts import Prompt, TextPrompt, repeat
from layered_llm.client.bench.records import Progress, Tally
from support.client_bench import FakeSender

TEN: tuple[Prompt, ...] = tuple(TextPrompt(f"p{number}") for number in range(10))
NO_LIMITS = Limits(requests=None, duration_s=None)


def arrivals(seed: int, count: int, rate_per_s: float = 4.0) -> list[float]:
    return list(islice(poisson_arrivals(Random(seed), rate_per_s), count))


def test_arrivals_are_those_of_the_seed() -> None:
    assert arrivals(1, 50) == arrivals(1, 50)
    assert arrivals(1, 50) != arrivals(2, 50)


def test_gaps_of_arrivals_are_exponential() -> None:
    gaps = [later - earlier for earlier, later in pairwise([0.0, *arrivals(0, 20_000)])]

    mean = math.fsum(gaps) / len(gaps)
    variance = math.fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    longer_than_mean = sum(gap > 0.25 for gap in gaps) / len(gaps)
    assert (0.25, 0.25, math.exp(-1)) == pytest.approx((mean, math.sqrt(variance), longer_than_mean), rel=0.03)
    assert min(gaps) > 0.0


async def test_closed_loop_never_has_more_open_than_clients(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda request: 1.0 + request.index % 3)
    await run_closed_loop(repeat(TEN), ClosedLoop(clients=4), Limits(requests=30, duration_s=None), sender, tally)

    run = tally.close(interrupted=False)
    assert (30, 4, 0) == (len(run.requests), run.peak_open, run.aborted)
    assert list(range(30)) == sorted(request.index for request in sender.sent)


async def test_closed_loop_waits_for_the_answer_before_it_asks_again(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda _request: 2.0)
    began_s = trio.current_time()
    await run_closed_loop(repeat(TEN), ClosedLoop(clients=1), Limits(requests=3, duration_s=None), sender, tally)

    assert [0.0, 2.0, 4.0] == pytest.approx([request.due_s - began_s for request in sender.sent])
    assert 6.0 == pytest.approx(tally.close(interrupted=False).duration_s)


async def test_closed_loop_begins_nothing_after_the_duration_but_finishes_what_is_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tally, sender = Tally(), FakeSender(lambda _request: 2.0)
    await run_closed_loop(repeat(TEN), ClosedLoop(clients=2), Limits(requests=None, duration_s=3.0), sender, tally)

    run = tally.close(interrupted=False)
    assert (4, 0) == (len(run.requests), run.aborted)
    assert 4.0 == pytest.approx(run.duration_s)


async def test_closed_loop_ends_with_its_prompts(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda _request: 1.0)
    await run_closed_loop(iter(TEN), ClosedLoop(clients=3), NO_LIMITS, sender, tally)

    assert set(TEN) == {request.prompt for request in sender.sent}


async def test_open_loop_sends_at_arrivals_however_slow_the_server(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda _request: 100.0)
    began_s = trio.current_time()
    await run_open_loop(iter(TEN), iter(arrivals(3, 10)), NO_LIMITS, sender, tally)

    run = tally.close(interrupted=False)
    assert arrivals(3, 10) == pytest.approx([request.due_s - began_s for request in sender.sent])
    assert arrivals(3, 10) == pytest.approx([record.sent_s - began_s for record in sorted(run.requests, key=lambda r: r.index)])
    assert (10, 10) == (len(run.requests), run.peak_open)


async def test_open_loop_ends_after_its_requests(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda _request: 1.0)
    await run_open_loop(repeat(TEN), poisson_arrivals(Random(0), 5.0), Limits(requests=7, duration_s=None), sender, tally)

    assert 7 == len(sender.sent)


async def test_open_loop_ends_after_its_duration(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda _request: 1.0)
    await run_open_loop(repeat(TEN), iter([1.0, 2.0, 3.0, 4.0]), Limits(requests=None, duration_s=3.0), sender, tally)

    assert [0, 1] == [request.index for request in sender.sent]


@pytest.mark.parametrize("pattern", [ClosedLoop(clients=3), OpenLoop(rate_per_s=3.0)])
async def test_cancelled_run_keeps_what_ended_and_counts_what_was_open(
    pattern: ClosedLoop | OpenLoop, autojump_clock: trio.testing.MockClock
) -> None:
    tally, sender = Tally(), FakeSender(lambda request: 1.0 if request.index < 2 else 1000.0)
    with trio.move_on_after(10.0):
        if isinstance(pattern, ClosedLoop):
            await run_closed_loop(repeat(TEN), pattern, NO_LIMITS, sender, tally)
        else:
            await run_open_loop(repeat(TEN), iter([0.0, 1.0, 2.0, 3.0, 4.0]), NO_LIMITS, sender, tally)

    run = tally.close(interrupted=True)
    assert [0, 1] == sorted(record.index for record in run.requests)
    assert (3, True) == (run.aborted, run.interrupted)
    assert 10.0 == pytest.approx(run.duration_s)


async def test_progress_of_a_run(autojump_clock: trio.testing.MockClock) -> None:
    tally, sender = Tally(), FakeSender(lambda request: 1.0 + request.index)
    with trio.move_on_after(2.5):
        await run_closed_loop(repeat(TEN), ClosedLoop(clients=3), Limits(requests=3, duration_s=None), sender, tally)

    expected = Progress(elapsed_s=tally.progress().elapsed_s, ended=2, failed=0, open=1, chunks=2, output_tokens=4)
    assert expected == tally.progress()
    assert 2.5 == pytest.approx(expected.elapsed_s)
