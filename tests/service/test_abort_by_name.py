import contextlib

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import ApiId, RequestId, TextId, compose_request_id
from layered_llm.domain.messages.api_text import Abort, Accepted, ApiToText
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiToSupervisor,
    EnginePhase,
    EngineStatus,
    RequestsAborted,
)
from layered_llm.domain.placement import Placement
from layered_llm.domain.ports.engine import EngineLost, RequestAborted
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.request_stream import RequestStream, TextConnection
from layered_llm.transport.outbox import Outbox
from layered_llm.transport.peers import STATE_TIMEOUT_S
from support.metrics import samples_by_name

API, OTHER_API = ApiId(5), ApiId(6)
ELSEWHERE = compose_request_id(OTHER_API, 0)
READY = EngineStatus(phase=EnginePhase.READY, generation=1, supervisor_pid=1, detail="ready")


class Sink:
    """A link that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[ApiToText | ApiToSupervisor] = []

    async def send(self, message: ApiToText | ApiToSupervisor) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(message)


def ready_client(text: TextConnection) -> EngineClient:
    client = EngineClient(api=API, pid=1, max_open_requests=100, draw_seed=lambda: 77)
    client.on_status(READY, (text,))
    return client


def connection() -> TextConnection:
    return TextConnection(TextId(0), READY.generation, Outbox(100))


def opened(client: EngineClient, owner: contextlib.ExitStack) -> RequestStream:
    stream = client.open(owner, Prompt.of_text("hello"), SamplingParams())
    assert isinstance(stream, RequestStream)
    client.on_text(Accepted(request=stream.request, prompt_tokens=1))
    return stream


async def aborts(text: TextConnection) -> list[Abort]:
    sink = Sink()
    await text.outbox.drain(sink)
    return [message for message in sink.taken if isinstance(message, Abort)]


async def test_its_reader_hears_that_a_request_was_ended_and_one_abort_leaves() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _read() -> None:
                with pytest.raises(RequestAborted):
                    await stream.receive()

            await wait_all_tasks_blocked()
            assert 1 == await client.abort(stream.request)

        assert 0 == await client.abort(stream.request)
    assert [Abort(request=stream.request, reason=AbortReason.ADMINISTRATIVE)] == await aborts(text)
    assert 1.0 == samples_by_name(client.report(0).metrics)['layered_llm_aborts_emitted_total{reason="administrative"}']


async def test_the_first_request_of_a_body_names_all_of_it_also_when_it_has_ended() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner, contextlib.ExitStack() as other:
        first, second, beside = opened(client, owner), opened(client, owner), opened(client, other)
        second.join(first.request)
        first.close(AbortReason.CLIENT_GONE)

        assert 1 == await client.abort(first.request)
        assert [True, False] == [second.was_left, beside.was_left]
        assert 0 == await client.abort(second.request)


async def test_a_request_is_known_by_what_its_client_calls_it_too() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        named, unnamed = opened(client, owner), opened(client, owner)
        named.call("mine")

        assert 0 == await client.abort(None, names=("other",))
        assert 1 == await client.abort(None, names=("chatcmpl-mine", "mine"))
        assert [True, False] == [named.was_left, unnamed.was_left]


@pytest.mark.parametrize("request_", [None, compose_request_id(API, 99)])
async def test_another_process_is_asked_by_the_name_whatever_the_id_looks_like(request_: RequestId | None) -> None:
    client, supervisor, sink = ready_client(connection()), Outbox[ApiToSupervisor](10), Sink()
    client.on_supervisor(supervisor)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.abort, request_, "", ("mine",))
        await wait_all_tasks_blocked()
        await supervisor.drain(sink)
        client.on_answer(RequestsAborted(query=1, count=1))

    assert [AbortByName(query=1, request=request_, names=("mine",))] == sink.taken


async def test_the_supervisor_is_not_asked_for_a_request_of_ones_own() -> None:
    client, supervisor = ready_client(connection()), Outbox[ApiToSupervisor](10)
    client.on_supervisor(supervisor)

    assert 0 == await client.abort(compose_request_id(API, 99))
    assert 0 == supervisor.pending


@pytest.mark.parametrize(("request_", "expected"), [(ELSEWHERE, 2), (None, 3)])
async def test_another_processs_answer_is_added(request_: RequestId | None, expected: int) -> None:
    client, supervisor, sink = ready_client(connection()), Outbox[ApiToSupervisor](10), Sink()
    client.on_supervisor(supervisor)
    counts = []
    with contextlib.ExitStack() as owner:
        opened(client, owner)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _abort() -> None:
                counts.append(await client.abort(request_))

            await wait_all_tasks_blocked()
            await supervisor.drain(sink)
            client.on_answer(RequestsAborted(query=1, count=2))

    assert [AbortByName(query=1, request=request_)] == sink.taken
    assert [expected] == counts


async def test_a_process_that_does_not_answer_leaves_it_unknown(autojump_clock: MockClock) -> None:
    client = ready_client(connection())
    client.on_supervisor(Outbox[ApiToSupervisor](10))

    with pytest.raises(EngineLost):
        await client.abort(ELSEWHERE)

    assert 2 * STATE_TIMEOUT_S == pytest.approx(trio.current_time())


async def test_without_a_supervisor_nothing_is_open_elsewhere() -> None:
    assert 0 == await ready_client(connection()).abort(ELSEWHERE)


async def test_nobody_ends_what_another_tenant_opened() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        stream = client.open(owner, Prompt.of_text("hello"), SamplingParams(), Placement(tenant="alice"))
        assert isinstance(stream, RequestStream)

        assert [0, 0] == [await client.abort(stream.request, "bob"), await client.abort(None, "bob")]
        assert not stream.was_left
        assert 1 == await client.abort(None, "alice")


async def test_the_supervisor_is_told_whose_requests_are_meant() -> None:
    client, supervisor, sink = ready_client(connection()), Outbox[ApiToSupervisor](10), Sink()
    client.on_supervisor(supervisor)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.abort, None, "alice")
        await wait_all_tasks_blocked()
        await supervisor.drain(sink)
        client.on_answer(RequestsAborted(query=1, count=0))

    assert [AbortByName(query=1, request=None, tenant="alice")] == sink.taken
