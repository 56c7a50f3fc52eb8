"""What an API process says of requests that are open or have ended."""

import contextlib

import pytest
import trio
import trio.testing

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, TextId, compose_request_id
from layered_llm.domain.messages.api_text import Accepted, Rejected, TextEmitted
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus, FindRequest, RequestFate, RequestFound
from layered_llm.domain.placement import Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.engine_client.ended_requests import MAX_ENDED_REQUESTS, EndedRequest, fate_among, fate_of_body
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.open_requests import OpenRequests
from layered_llm.service.engine_client.request_stream import MAX_MESSAGE_CHARS, RequestStream, TextConnection
from layered_llm.transport.outbox import Outbox
from support.request_table import entered

API, OTHER = ApiId(5), ApiId(6)
READY = EngineStatus(phase=EnginePhase.READY, generation=1, supervisor_pid=1, detail="ready")
LOST = EngineStatus(phase=EnginePhase.RESTARTING, generation=1, supervisor_pid=1, detail="again")
OPEN = RequestFate(is_open=True)


def ready_client() -> EngineClient:
    client = EngineClient(api=API, pid=1, max_open_requests=100, draw_seed=lambda: 77)
    client.on_status(READY, (TextConnection(TextId(0), READY.generation, Outbox(100)),))
    return client


def opened(client: EngineClient, owner: contextlib.ExitStack, tenant: str = "", choices: int = 1) -> RequestStream:
    stream = client.open(owner, Prompt.of_text("hello"), SamplingParams(n=choices), Placement(tenant=tenant))
    assert isinstance(stream, RequestStream)
    return stream


def ends(client: EngineClient, request: RequestId, *reasons: FinishReason, error: str | None = None) -> None:
    client.on_text(Accepted(request=request, prompt_tokens=1))
    client.on_text(
        TextEmitted(
            requests=pack_i64([request] * len(reasons)),
            choices=pack_i32(range(len(reasons))),
            texts=("a",) * len(reasons),
            token_counts=pack_i32([1] * len(reasons)),
            token_ids=pack_i32([7] * len(reasons)),
            finish_reasons=pack_i8(reasons),
            matched_stops=(None,) * len(reasons),
            ended=pack_i64([request]),
            ended_prompt_tokens=pack_i32([1]),
            ended_completion_tokens=pack_i32([1]),
            ended_cached_tokens=pack_i32([0]),
            ended_errors=(error,),
        )
    )


@pytest.mark.parametrize(
    ("reasons", "error", "fate"),
    [
        ((FinishReason.STOP,), None, RequestFate(reason="stop")),
        ((FinishReason.LENGTH,), None, RequestFate(reason="length")),
        ((FinishReason.STOP, FinishReason.LENGTH), None, RequestFate(reason="length")),
        ((FinishReason.QUEUE_TIMEOUT,), None, RequestFate(reason="queue_timeout")),
        ((FinishReason.ERROR,), "the device failed" * 99, RequestFate(reason="error", error=("the device failed" * 99)[:200])),
    ],
)
async def test_a_request_that_the_engine_ended_is_known_by_its_finish_reason(
    reasons: tuple[FinishReason, ...], error: str | None, fate: RequestFate
) -> None:
    client = ready_client()
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner, choices=len(reasons))
        before = client.find_here(stream.request, "")
        ends(client, stream.request, *reasons, error=error)

    assert (OPEN, fate) == (before, client.find_here(stream.request, ""))
    assert 200 == MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (AbortReason.CLIENT_GONE, "client_gone"),
        (AbortReason.TIMEOUT, "timeout"),
        (AbortReason.SHUTDOWN, "shutdown"),
        (AbortReason.ADMINISTRATIVE, "aborted"),
    ],
)
async def test_a_request_that_was_left_is_known_by_why(reason: AbortReason, word: str) -> None:
    client = ready_client()
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        stream.close(reason)

    assert RequestFate(reason=word) == client.find_here(stream.request, "")


async def test_a_request_that_was_refused_or_lost_says_so() -> None:
    client = ready_client()
    with contextlib.ExitStack() as owner:
        refused, lost = opened(client, owner), opened(client, owner)
        client.on_text(Rejected(request=refused.request, reason=RejectReason.EMPTY_PROMPT, message="no prompt"))
        client.on_status(LOST, ())

    assert RequestFate(reason="rejected", error="no prompt") == client.find_here(refused.request, "")
    assert RequestFate(reason="engine_lost") == client.find_here(lost.request, "")


async def test_nobody_finds_what_another_tenant_asked_by_its_id_or_by_its_name() -> None:
    client = ready_client()
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner, "alice")
        stream.call("mine")
        found = [client.find_here(stream.request, tenant, ("mine",)) for tenant in ("bob", "", "alice", None)]
    later = [client.find_here(stream.request, tenant, ("mine",)) for tenant in ("bob", "", "alice", None)]

    assert [None, None, OPEN, OPEN] == found
    assert [None, None, *[RequestFate(reason="client_gone")] * 2] == later


async def test_a_body_is_open_as_long_as_one_of_its_prompts_is() -> None:
    client = ready_client()
    with contextlib.ExitStack() as owner:
        first, second = opened(client, owner), opened(client, owner)
        second.join(first.request)
        ends(client, first.request, FinishReason.STOP)
        between = client.find_here(first.request, "")
        ends(client, second.request, FinishReason.LENGTH)

    assert (OPEN, RequestFate(reason="length")) == (between, client.find_here(first.request, ""))


async def test_what_was_never_asked_is_not_known_nor_is_a_question_about_the_tokenizer() -> None:
    client = ready_client()

    assert await client.find(compose_request_id(API, 99), "", ("x",)) is None


@pytest.mark.parametrize("reasons", [["stop", "client_gone", "length"], ["client_gone", "stop"]])
def test_a_body_of_which_a_prompt_failed_has_failed(reasons: list[str]) -> None:
    assert RequestFate(reason="client_gone") == fate_of_body([RequestFate(reason=reason) for reason in reasons])


def test_only_so_many_are_remembered() -> None:
    table = OpenRequests()
    for number in range(MAX_ENDED_REQUESTS + 1):
        entered(table, RequestId(number)).close(AbortReason.TIMEOUT)

    assert (MAX_ENDED_REQUESTS, 1) == (len(table.ended), table.ended[0].body)


def test_of_two_bodies_of_one_name_the_last_one_is_meant() -> None:
    ended = [
        EndedRequest(body=RequestId(number), name="mine", tenant="", fate=RequestFate(reason=reason))
        for number, reason in enumerate(("error", "stop"))
    ]
    assert RequestFate(reason="stop") == fate_among(ended, None, "", ("mine",))


async def test_an_id_of_another_process_is_asked_there() -> None:
    client = ready_client()
    supervisor: Outbox[object] = Outbox(10)
    client.on_supervisor(supervisor)  # type: ignore[arg-type] # it takes everything
    request = compose_request_id(OTHER, 3)
    sent: list[object] = []

    class Sink:
        async def send(self, message: object) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(message)

    found: list[RequestFate | None] = []

    async def find() -> None:
        found.append(await client.find(request, "alice", ("mine",)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(find)
        await trio.testing.wait_all_tasks_blocked()
        await supervisor.drain(Sink())
        client.on_answer(RequestFound(query=1, fate=RequestFate(reason="stop")))

    assert [FindRequest(query=1, request=request, names=("mine",), tenant="alice")] == sent
    assert [RequestFate(reason="stop")] == found
