import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import ApiId, RequestId
from layered_llm.domain.messages.api_text import Abort, Accepted, ApiToText, Submit, TextToApi
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiGoodbye,
    ApiHello,
    ApiToSupervisor,
    EnginePhase,
    EngineStatus,
    RequestsAborted,
    StateQuery,
    StateReport,
    Stop,
    SupervisorToApi,
)
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.engine_connection import GOODBYE_S, LAST_ABORTS_S, EngineConnection
from layered_llm.service.engine_client.request_stream import RequestStream
from layered_llm.testing.memory_links import MemoryDealerLink, MemoryLinks, MemoryPeerLink
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_SUPERVISOR, API_TEXT, LinkSpec
from layered_llm.transport.peers import api_peer_name
from layered_llm.transport.ports import SendOutcome
from support.service_ends import TEST_S

API = ApiId(5)
PID, SUPERVISOR_PID = 100, 200


def addresses(generation: int) -> LinkAddresses:
    return LinkAddresses.in_process("engine", generation=generation)


def ready(generation: int, texts: int = 1) -> EngineStatus:
    return EngineStatus(
        phase=EnginePhase.READY,
        generation=generation,
        supervisor_pid=SUPERVISOR_PID,
        detail="ready",
        text_addresses=tuple(addresses(generation).text(index) for index in range(texts)),
    )


def restarting(generation: int) -> EngineStatus:
    return EngineStatus(
        phase=EnginePhase.RESTARTING, generation=generation, supervisor_pid=SUPERVISOR_PID, detail="restarting: it died"
    )


@attrs.define(eq=False, kw_only=True)
class Ends:
    """What stands around an API process's connection."""

    client: EngineClient
    connection: EngineConnection
    supervisor: MemoryPeerLink[SupervisorToApi, ApiToSupervisor]
    texts: dict[int, MemoryPeerLink[TextToApi, ApiToText]]
    """The text worker of each generation."""
    leave: trio.Event
    supervisor_gone: trio.Event
    is_over: trio.Event

    async def tell(self, status: EngineStatus) -> None:
        self.supervisor.send_nowait(api_peer_name(API), status)
        await trio.testing.wait_all_tasks_blocked()

    async def heard(self) -> list[ApiToSupervisor]:
        return [message for _peer, message in await self.supervisor.receive()]  # type: ignore[misc]  # none is garbled

    async def taken(self, generation: int) -> list[ApiToText]:
        return [message for _peer, message in await self.texts[generation].receive()]  # type: ignore[misc]  # as above

    def open(self, owner: contextlib.ExitStack) -> RequestStream:
        stream = self.client.open(owner, Prompt.of_text("hello"), SamplingParams())
        assert isinstance(stream, RequestStream)
        return stream


@contextlib.asynccontextmanager
async def connected(*, generations: int = 2) -> AsyncIterator[Ends]:
    links, gone, is_over, leave = MemoryLinks(), trio.Event(), trio.Event(), trio.Event()
    client = EngineClient(api=API, pid=PID, max_open_requests=10, draw_seed=lambda: 1)

    async def wait_exit(pid: int) -> None:
        assert SUPERVISOR_PID == pid
        await gone.wait()

    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        supervisor = enter(links.bind(API_SUPERVISOR, "supervisor"))
        texts = {number: enter(links.bind(API_TEXT, addresses(number).text(0))) for number in range(1, generations + 1)}
        link = enter(links.connect(API_SUPERVISOR, "supervisor", api_peer_name(API)))
        connection = EngineConnection(client, links, 10, link, wait_exit)

        async def run() -> None:
            await connection.run(leave)
            is_over.set()

        enter(trio.fail_after(TEST_S))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            ends = Ends(
                client=client,
                connection=connection,
                supervisor=supervisor,
                texts=texts,
                leave=leave,
                supervisor_gone=gone,
                is_over=is_over,
            )
            yield ends
            nursery.cancel_scope.cancel()


async def test_an_api_process_introduces_itself_and_connects_when_the_engine_is_ready(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        assert [ApiHello(api=API, pid=PID)] == await ends.heard()
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            stream = ends.open(owner)
            (submit,) = await ends.taken(1)
            ends.texts[1].send_nowait(api_peer_name(API), Accepted(request=stream.request, prompt_tokens=1))

            assert isinstance(submit, Submit)
            assert Accepted(request=stream.request, prompt_tokens=1) == await stream.verdict()


async def test_an_order_from_another_api_process_ends_the_request_and_is_answered(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.heard()
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            request = ends.open(owner).request
            ends.supervisor.send_nowait(api_peer_name(API), AbortByName(query=3, request=request))

            assert [RequestsAborted(query=3, count=1)] == await ends.heard()
            assert Abort(request=request, reason=AbortReason.ADMINISTRATIVE) == (await ends.taken(1))[-1]


class OneTextLinks(MemoryLinks):
    """Links with room for one text worker."""

    @contextlib.contextmanager
    def connect(self, spec: LinkSpec[Any, Any], address: str, name: str) -> Iterator[MemoryDealerLink[Any, Any]]:
        if address == addresses(1).text(1):
            raise OSError("too many open files")
        with super().connect(spec, address, name) as link:
            yield link


async def test_a_generation_that_cannot_be_connected_to_leaves_no_link_open() -> None:
    links = OneTextLinks()
    client = EngineClient(api=API, pid=PID, max_open_requests=10, draw_seed=lambda: 1)
    with (
        links.bind(API_TEXT, addresses(1).text(0)) as text,
        links.bind(API_SUPERVISOR, "supervisor"),
        links.connect(API_SUPERVISOR, "supervisor", api_peer_name(API)) as link,
    ):
        with pytest.raises(OSError, match="too many"):
            EngineConnection(client, links, 10, link)._connect(ready(1, texts=2))

        accepted = Accepted(request=RequestId(1), prompt_tokens=1)
        assert SendOutcome.UNREACHABLE is text.send_nowait(api_peer_name(API), accepted)


async def test_the_next_generation_has_links_of_its_own(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            lost = ends.open(owner)
            await ends.taken(1)
            await ends.tell(restarting(1))
            with pytest.raises(EngineLost):
                await lost.verdict()
            assert EnginePhase.RESTARTING is ends.client.status().phase

            await ends.tell(ready(2))
            again = ends.open(owner)
            (submit,) = await ends.taken(2)

            assert isinstance(submit, Submit)
            assert again.request == submit.request
        with trio.move_on_after(60.0) as scope:
            await ends.taken(1)
        assert scope.cancelled_caught


async def test_a_generation_that_replaces_another_at_once_loses_its_requests_too(
    autojump_clock: MockClock,
) -> None:
    async with connected() as ends:
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            lost = ends.open(owner)
            await ends.tell(ready(2))

            assert lost.is_over
            assert not lost.was_left


async def test_a_generation_that_still_serves_keeps_its_requests_beside_the_next_one(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            earlier = ends.open(owner)
            await ends.taken(1)
            await ends.tell(attrs.evolve(restarting(2), still_serving=(1,)))
            await ends.tell(attrs.evolve(ready(2), still_serving=(1,)))
            later = ends.open(owner)
            await ends.taken(2)

            for number, stream in ((2, later), (1, earlier)):
                accepted = Accepted(request=stream.request, prompt_tokens=number)
                ends.texts[number].send_nowait(api_peer_name(API), accepted)
                assert accepted == await stream.verdict()

            await ends.tell(ready(2))
            assert [True, False] == [earlier.is_over, later.is_over]


async def test_a_status_that_is_told_again_changes_nothing(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            stream = ends.open(owner)
            await ends.tell(ready(1))

            assert not stream.is_over
            assert 1 == len(await ends.taken(1))


async def test_aborts_are_out_before_the_goodbye_is_said(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.heard()
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            stream = ends.open(owner)
            await ends.taken(1)
            ends.leave.set()
            goodbye = await ends.heard()
            with trio.fail_after(0.001):
                aborts = await ends.taken(1)

            assert [ApiGoodbye(api=API)] == goodbye
            assert [Abort(request=stream.request, reason=AbortReason.SHUTDOWN)] == aborts
            assert not ends.is_over.is_set()
            ends.supervisor.send_nowait(api_peer_name(API), Stop())
            await ends.is_over.wait()
        assert EnginePhase.STOPPING is ends.client.status().phase


async def test_a_supervisor_that_does_not_answer_the_goodbye_is_not_waited_for_long(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.tell(ready(1))
        ends.leave.set()
        await ends.is_over.wait()

        assert trio.current_time() <= LAST_ABORTS_S + GOODBYE_S
        assert SUPERVISOR_PID == ends.connection.hung_supervisor_pid


async def test_a_supervisor_that_never_said_a_word_is_none_to_be_ended(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        ends.leave.set()
        await ends.is_over.wait()

        assert ends.connection.hung_supervisor_pid is None


async def test_the_end_of_the_supervisors_process_ends_the_stay_and_loses_everything(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.tell(ready(1))
        with contextlib.ExitStack() as owner:
            stream = ends.open(owner)
            ends.supervisor_gone.set()
            await ends.is_over.wait()

            with pytest.raises(EngineLost):
                await stream.verdict()
        assert EnginePhase.RESTARTING is ends.client.status().phase


async def test_before_its_first_word_the_supervisor_may_come_late(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        ends.supervisor_gone.set()
        await trio.sleep(60.0)
        assert not ends.is_over.is_set()

        await ends.tell(restarting(1))
        assert ends.is_over.is_set()


async def test_a_state_query_is_answered_with_the_process_own_report(autojump_clock: MockClock) -> None:
    async with connected() as ends:
        await ends.heard()
        ends.supervisor.send_nowait(api_peer_name(API), StateQuery(query=4))
        (report,) = await ends.heard()

        assert isinstance(report, StateReport)
        assert (4, API, PID) == (report.query, report.index, report.pid)
