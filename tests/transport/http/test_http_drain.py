import contextlib

import pytest
import trio
from trio.testing import MockClock

from layered_llm.transport.http.exchange.drain import Drain


async def test_a_wait_ends_after_its_own_timeout_when_nothing_drains(autojump_clock: MockClock) -> None:
    with Drain(5.0).bounded(1.0) as scope:
        await trio.Event().wait()

    assert scope.cancelled_caught
    assert trio.current_time() == 1.0


async def test_a_drain_ends_the_waits_that_have_begun_and_those_that_begin_later(autojump_clock: MockClock) -> None:
    drain, ends = Drain(5.0), []

    async def wait() -> None:
        with drain.bounded():
            await trio.Event().wait()
        ends.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1.0)
        drain.begin()
        nursery.start_soon(wait)

    assert ends == [6.0, 6.0]
    assert drain.is_over


async def test_a_second_begin_changes_nothing(autojump_clock: MockClock) -> None:
    drain = Drain(5.0)
    drain.begin()
    await trio.sleep(4.0)
    drain.begin()
    await trio.sleep(1.0)

    assert drain.is_over


@pytest.mark.parametrize("timeout_s", [0.0, 1.0])
async def test_a_drain_is_active_before_it_is_over(timeout_s: float, autojump_clock: MockClock) -> None:
    drain = Drain(timeout_s)
    assert not drain.is_active
    assert not drain.is_over

    drain.begin()

    assert drain.is_active
    assert drain.is_over is (timeout_s == 0.0)


async def test_a_drain_without_open_responses_is_done_at_once(autojump_clock: MockClock) -> None:
    drain = Drain(5.0)
    with contextlib.ExitStack() as owner:
        drain.hold(owner)
    drain.begin()

    await drain.wait_drained()

    assert trio.current_time() == 0.0


def test_a_drain_knows_how_many_responses_are_open() -> None:
    drain = Drain(5.0)
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other:
        drain.hold(one)
        drain.hold(other)
        both = drain.open_responses
        one.close()
        left = drain.open_responses

    assert (2, 1, 0) == (both, left, drain.open_responses)


async def test_a_drain_is_done_when_the_last_response_closes(autojump_clock: MockClock) -> None:
    drain = Drain(5.0)

    async def respond(seconds: float) -> None:
        with contextlib.ExitStack() as owner:
            drain.hold(owner)
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(respond, 1.0)
        nursery.start_soon(respond, 2.0)
        await trio.sleep(0.5)
        drain.begin()
        await drain.wait_drained()
        assert trio.current_time() == 2.0


async def test_a_response_that_stays_open_holds_a_drain_no_longer_than_its_timeout(autojump_clock: MockClock) -> None:
    drain = Drain(5.0)
    with contextlib.ExitStack() as owner:
        drain.hold(owner)
        drain.begin()

        await drain.wait_drained()

    assert trio.current_time() == 5.0
