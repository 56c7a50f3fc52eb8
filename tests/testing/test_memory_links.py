from collections.abc import Iterator

import pytest
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Abort, Accepted
from layered_llm.domain.messages.scheduler_runtime import RuntimeWarmingUp
from layered_llm.testing.memory_links import MemoryLinks
from layered_llm.transport.link_specs import API_TEXT, SCHEDULER_RUNTIME
from layered_llm.transport.ports import SendOutcome
from support.runtime_driver import make_step

ADDRESS = "inproc://engine/text"
API = "api-1"


def accepted(number: int) -> Accepted:
    return Accepted(request=RequestId(number), prompt_tokens=1)


def abort(number: int) -> Abort:
    return Abort(request=RequestId(number), reason=AbortReason.CLIENT_GONE)


def delays(*seconds: float) -> Iterator[float]:
    yield from seconds


async def test_messages_arrive_in_order_however_long_each_is_on_its_way(autojump_clock: trio.testing.MockClock) -> None:
    drawn = delays(3.0, 1.0, 5.0)
    links = MemoryLinks(lambda: next(drawn))
    with links.bind(API_TEXT, ADDRESS) as text, links.connect(API_TEXT, ADDRESS, API) as api:
        for number in range(3):
            text.send_nowait(API, accepted(number))

        assert (accepted(0), accepted(1)) == await api.receive()
        assert 3.0 == trio.current_time()
        assert (accepted(2),) == await api.receive()
        assert 5.0 == trio.current_time()


async def test_a_cancelled_receive_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    links = MemoryLinks(lambda: 1.0)
    with links.bind(API_TEXT, ADDRESS) as text, links.connect(API_TEXT, ADDRESS, API) as api:
        text.send_nowait(API, accepted(1))
        with trio.move_on_after(1.0):
            await api.receive()

        assert (accepted(1),) == await api.receive()


async def test_a_name_that_is_not_connected_is_unreachable() -> None:
    links = MemoryLinks()
    with links.bind(API_TEXT, ADDRESS) as text:
        assert SendOutcome.UNREACHABLE is text.send_nowait(API, accepted(1))


async def test_what_is_on_its_way_to_an_end_that_closes_is_lost() -> None:
    links = MemoryLinks()
    with links.bind(API_TEXT, ADDRESS) as text:
        with links.connect(API_TEXT, ADDRESS, API):
            text.send_nowait(API, accepted(1))
        with links.connect(API_TEXT, ADDRESS, API) as api:
            text.send_nowait(API, accepted(2))

            assert (accepted(2),) == await api.receive()


async def test_every_peer_of_a_group_gets_each_message_and_is_heard_by_name() -> None:
    links, ready = MemoryLinks(), RuntimeWarmingUp()
    with (
        links.bind_group(SCHEDULER_RUNTIME, ADDRESS, ("runtime-0", "runtime-1")) as group,
        links.connect(SCHEDULER_RUNTIME, ADDRESS, "runtime-0") as first,
        links.connect(SCHEDULER_RUNTIME, ADDRESS, "runtime-1") as second,
    ):
        step = make_step(1)
        await group.send(step)
        await second.send(ready)

        assert ((step,), (step,)) == (await first.receive(), await second.receive())
        assert (("runtime-1", ready),) == await group.receive()


async def test_an_address_is_bound_once() -> None:
    links = MemoryLinks()
    with (
        links.bind(API_TEXT, ADDRESS),
        pytest.raises(InvariantViolated, match="bound already"),
        links.bind(API_TEXT, ADDRESS),
    ):
        pass


async def test_a_stalled_peer_is_full_at_the_limit_and_gets_everything_later() -> None:
    links = MemoryLinks(high_water_mark=2)
    with links.bind(API_TEXT, ADDRESS) as text, links.connect(API_TEXT, ADDRESS, API) as api:
        links.stall(API)
        outcomes = [text.send_nowait(API, accepted(number)) for number in range(3)]
        links.resume(API)

        assert [SendOutcome.SENT, SendOutcome.SENT, SendOutcome.FULL] == outcomes
        assert (accepted(0), accepted(1)) == await api.receive()


async def test_a_stalled_peer_takes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    links = MemoryLinks()
    with links.bind(API_TEXT, ADDRESS) as text, links.connect(API_TEXT, ADDRESS, API) as api:
        links.stall(API)
        text.send_nowait(API, accepted(1))
        with trio.move_on_after(100.0) as scope:
            await api.receive()

        assert scope.cancelled_caught


async def test_a_killed_peer_is_unreachable_and_loses_what_it_sent() -> None:
    links = MemoryLinks()
    with (
        links.bind(API_TEXT, ADDRESS) as text,
        links.connect(API_TEXT, ADDRESS, API) as api,
        links.connect(API_TEXT, ADDRESS, "api-2") as other,
    ):
        await api.send(abort(1))
        await other.send(abort(2))
        links.kill(API, loses_sent=True)
        await api.send(abort(3))

        assert (("api-2", abort(2)),) == await text.receive()
        assert SendOutcome.UNREACHABLE is text.send_nowait(API, accepted(1))


async def test_what_a_killed_peer_sent_may_still_arrive() -> None:
    links = MemoryLinks()
    with links.bind(API_TEXT, ADDRESS) as text, links.connect(API_TEXT, ADDRESS, API) as api:
        await api.send(abort(1))
        links.kill(API, loses_sent=False)

        assert ((API, abort(1)),) == await text.receive()
