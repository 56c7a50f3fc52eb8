import contextlib

import attrs
import pytest
import trio
import trio.testing

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import ApiId, TextId
from layered_llm.domain.messages.api_text import (
    Abort,
    Accepted,
    ApiToText,
    DescribeTokenizer,
    Rejected,
    Submit,
    TextEmitted,
    TokenizerDescribed,
)
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import (
    AbortTally,
    ApiToSupervisor,
    EnginePhase,
    EngineState,
    EngineStatus,
    Role,
)
from layered_llm.domain.ports.engine import BacklogFull, EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.engine_client.engine_client import SLOTS_OF_A_REQUEST, EngineClient
from layered_llm.service.engine_client.request_stream import RequestStream, TextConnection
from layered_llm.service.server.api import freeze_when_ready
from layered_llm.transport.outbox import Outbox
from layered_llm.transport.peers import STATE_TIMEOUT_S
from support.metrics import samples_by_name

READY = EngineStatus(phase=EnginePhase.READY, generation=1, supervisor_pid=1, detail="ready")
RESTARTING = EngineStatus(phase=EnginePhase.RESTARTING, generation=1, supervisor_pid=1, detail="restarting: it died")
PROMPT = Prompt.of_text("hello")


class Sink:
    """A link that keeps what it is given."""

    def __init__(self) -> None:
        self.taken: list[ApiToText] = []

    async def send(self, message: ApiToText) -> None:
        await trio.lowlevel.checkpoint()
        self.taken.append(message)


def connection(index: int = 0, capacity: int = 100, *, generation: int = READY.generation) -> TextConnection:
    return TextConnection(TextId(index), generation, Outbox(capacity))


def ready_client(*texts: TextConnection, max_open_requests: int = 100) -> EngineClient:
    client = EngineClient(api=ApiId(5), pid=1, max_open_requests=max_open_requests, draw_seed=lambda: 77)
    client.on_status(READY, texts)
    return client


def opened(client: EngineClient, owner: contextlib.ExitStack, **params: int) -> RequestStream:
    stream = client.open(owner, PROMPT, SamplingParams(**params))  # type: ignore[arg-type]  # plain integers only
    assert isinstance(stream, RequestStream)
    return stream


def refusal(client: EngineClient) -> RejectReason:
    with contextlib.ExitStack() as owner:
        rejected = client.open(owner, PROMPT, SamplingParams())
    assert isinstance(rejected, Rejected)
    return rejected.reason


async def emitted(text: TextConnection) -> list[ApiToText]:
    sink = Sink()
    await text.outbox.drain(sink)
    return sink.taken


def maps(client: EngineClient) -> list[int]:
    return [size for _, size in client.report(0).maps]


async def test_a_request_goes_to_the_text_worker_with_the_fewest() -> None:
    first, second = connection(0), connection(1)
    client = ready_client(first, second)
    with contextlib.ExitStack() as owner, contextlib.ExitStack() as other:
        streams = [opened(client, owner), opened(client, other), opened(client, owner)]
        assert [first, second, first] == [stream.connection for stream in streams]

        other.close()
        assert second is opened(client, owner).connection
        assert second is opened(client, owner).connection


async def test_everything_about_a_request_goes_through_one_outbox() -> None:
    """An abort that goes by another tokenizer process overtakes its request, which then runs to its end (mini-sglang)."""
    first, second = connection(0), connection(1)
    client = ready_client(first, second)
    with contextlib.ExitStack() as owner:
        opened(client, owner)
        request = opened(client, owner).request

    submit, abort = await emitted(second)
    assert isinstance(submit, Submit)
    assert request == submit.request
    assert Abort(request=request, reason=AbortReason.CLIENT_GONE) == abort


async def test_leaving_the_owner_emits_one_abort_at_once() -> None:
    """The abort is a task that nobody holds: it may never run, or twice (FlashML-org/FreeToken 222, mini-sglang)."""
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        stream.close(AbortReason.TIMEOUT)
        stream.close(AbortReason.CLIENT_GONE)

    assert 2 == text.outbox.pending
    assert 0 == text.outbox.reserved
    assert stream.was_left
    assert [0, 0] == maps(client)


async def test_a_full_outbox_refuses_since_the_abort_could_not_be_sent() -> None:
    text = connection(capacity=2 * SLOTS_OF_A_REQUEST - 1)
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        opened(client, owner)

        assert RejectReason.QUEUE_FULL is refusal(client)
        assert 1 == text.outbox.reserved
    assert 2 == text.outbox.pending


async def test_a_process_holds_a_limited_number_of_requests() -> None:
    client = ready_client(connection(), max_open_requests=1)
    with contextlib.ExitStack() as owner:
        opened(client, owner)
        assert RejectReason.QUEUE_FULL is refusal(client)
    with contextlib.ExitStack() as owner:
        opened(client, owner)


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        (EnginePhase.STARTING, RejectReason.NOT_READY),
        (EnginePhase.RESTARTING, RejectReason.NOT_READY),
        (EnginePhase.FAILED, RejectReason.NOT_READY),
        (EnginePhase.STOPPING, RejectReason.SHUTTING_DOWN),
    ],
)
async def test_no_request_is_taken_unless_the_engine_is_ready(phase: EnginePhase, reason: RejectReason) -> None:
    client = ready_client(connection())
    client.on_status(attrs.evolve(RESTARTING, phase=phase, detail="it died"), ())

    with contextlib.ExitStack() as owner:
        rejected = client.open(owner, PROMPT, SamplingParams())
    assert isinstance(rejected, Rejected)
    assert (reason, f"The engine is {phase.value}: it died") == (rejected.reason, rejected.message)


async def test_a_rejected_request_gives_its_abort_slot_back() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        client.on_text(Rejected(request=stream.request, reason=RejectReason.EMPTY_PROMPT, message="empty"))
        assert 0 == text.outbox.reserved

    assert 1 == len(await emitted(text))
    assert [0, 0] == maps(client)


async def test_a_generation_that_ends_loses_its_requests_and_owes_nothing() -> None:
    text, next_text = connection(), connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        client.on_text(Accepted(request=stream.request, prompt_tokens=1))
        client.on_status(RESTARTING, ())
        client.on_status(READY, (next_text,))

        with pytest.raises(EngineLost):
            await stream.receive()
    assert 0 == next_text.outbox.pending
    assert [0, 0] == maps(client)


def samples(client: EngineClient) -> dict[str, float]:
    return samples_by_name(client.report(0).metrics)


async def test_aborts_are_told_by_text_worker_and_lost_with_their_generation() -> None:
    first, second = connection(0), connection(1)
    client = ready_client(first, second)
    for _ in range(3):
        with contextlib.ExitStack() as owner:
            opened(client, owner)

    assert (AbortTally(peer=Role.TEXT, index=0, aborts=3), AbortTally(peer=Role.TEXT, index=1, aborts=0)) == (
        client.report(0).aborts_sent
    )
    assert 0.0 == samples(client)["layered_llm_aborts_lost_total"]

    client.on_status(RESTARTING, ())
    client.on_status(READY, (connection(0),))
    assert 3.0 == samples(client)["layered_llm_aborts_lost_total"]
    assert (AbortTally(peer=Role.TEXT, index=0, aborts=0),) == client.report(0).aborts_sent


async def test_what_an_earlier_generation_still_serves_goes_on_beside_the_present_one() -> None:
    """New requests go to the present one alone, and only what a lost connection had is lost with it."""
    earlier, present = connection(), connection(generation=2)
    client = ready_client(earlier)
    with contextlib.ExitStack() as owner:
        first = opened(client, owner)
        client.on_status(attrs.evolve(READY, generation=2), (earlier, present))
        second, third = opened(client, owner), opened(client, owner)
        assert [earlier, present, present] == [stream.connection for stream in (first, second, third)]

        client.on_text(Accepted(request=first.request, prompt_tokens=1))
        assert [False] * 3 == [stream.is_over for stream in (first, second, third)]

        client.on_status(attrs.evolve(READY, generation=2), (present,))
        assert [True, False, False] == [stream.is_over for stream in (first, second, third)]
    assert [1, 4] == [text.outbox.pending for text in (earlier, present)]
    assert [0, 0] == maps(client)


async def test_an_engine_that_starts_again_takes_no_request_beside_what_it_still_serves() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        client.on_status(RESTARTING, (text,))

        assert (RejectReason.NOT_READY, False) == (refusal(client), stream.is_over)


async def test_a_status_of_the_same_generation_loses_nothing() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        client.on_status(READY, (text,))

        assert not stream.is_over


async def test_a_reader_that_waits_hears_of_the_loss() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def _wait() -> None:
                with pytest.raises(EngineLost):
                    await stream.verdict()

            await trio.testing.wait_all_tasks_blocked()
            client.on_status(RESTARTING, ())


async def test_a_verdict_that_is_there_is_a_checkpoint_too() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        stream = opened(client, owner)
        client.on_text(Accepted(request=stream.request, prompt_tokens=1))
        with trio.testing.assert_checkpoints():
            await stream.verdict()


async def test_closing_everything_aborts_each_request_and_tells_its_reader() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        streams = [opened(client, owner) for _ in range(2)]
        client.close_all(AbortReason.SHUTDOWN)
        for stream in streams:
            with pytest.raises(EngineLost):
                await stream.verdict()

    aborts = [message for message in await emitted(text) if isinstance(message, Abort)]
    assert [AbortReason.SHUTDOWN] * 2 == [abort.reason for abort in aborts]


async def test_what_comes_for_a_request_that_was_left_is_counted() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        request = opened(client, owner).request
    client.on_text(Accepted(request=request, prompt_tokens=1))

    assert 1.0 == samples_by_name(client.report(0).metrics)["layered_llm_late_rows_total"]


def asked(client: EngineClient, owner: contextlib.ExitStack) -> RequestStream:
    question = client.ask(owner, lambda request: DescribeTokenizer(request=request))
    assert isinstance(question, RequestStream)
    return question


async def test_a_question_is_answered_once_and_nothing_is_left_of_it() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        question = asked(client, owner)
        answer = TokenizerDescribed(request=question.request, config="{}")
        client.on_text(answer)

        assert answer == await question.answer()
        assert [0, 0] == maps(client)
    assert [DescribeTokenizer(request=question.request)] == await emitted(text)
    assert 0 == text.outbox.reserved


async def test_a_question_that_is_left_is_aborted_and_its_answer_late() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        question = asked(client, owner)
    client.on_text(TokenizerDescribed(request=question.request, config="{}"))

    assert Abort(request=question.request, reason=AbortReason.CLIENT_GONE) == (await emitted(text))[-1]
    samples = samples_by_name(client.report(0).metrics)
    assert 1.0 == samples['layered_llm_aborts_emitted_total{reason="client_gone"}']
    assert 1.0 == samples["layered_llm_late_rows_total"]
    assert [0, 0] == maps(client)


async def test_a_question_that_is_rejected_is_told_so() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        question = asked(client, owner)
        rejected = Rejected(request=question.request, reason=RejectReason.TEMPLATE_ERROR, message="no")
        client.on_text(rejected)

        assert rejected == await question.answer()
    assert [0, 0] == maps(client)


async def test_a_question_is_lost_with_its_text_worker() -> None:
    client = ready_client(connection())
    with contextlib.ExitStack() as owner:
        question = asked(client, owner)
        client.on_status(RESTARTING, ())

        with pytest.raises(EngineLost):
            await question.answer()


async def test_questions_count_against_what_a_process_holds() -> None:
    client = ready_client(connection(), max_open_requests=1)
    with contextlib.ExitStack() as owner:
        asked(client, owner)

        assert RejectReason.QUEUE_FULL is refusal(client)


async def test_a_seed_is_drawn_for_a_request_that_has_none() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        opened(client, owner)
        opened(client, owner, seed=3)

    assert [77, 3] == [message.seed for message in await emitted(text) if isinstance(message, Submit)]


async def test_the_supervisor_answers_for_everybody() -> None:
    client, outbox = ready_client(connection()), Outbox[ApiToSupervisor](10)
    client.on_supervisor(outbox)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def _ask() -> None:
            assert EngineState(query=1, reports=(), silent=("text-0",)) == await client.state()

        await trio.testing.wait_all_tasks_blocked()
        assert 1 == outbox.pending
        client.on_answer(EngineState(query=9, reports=(), silent=()))
        client.on_answer(EngineState(query=1, reports=(), silent=("text-0",)))


async def test_a_supervisor_that_does_not_answer_is_named(autojump_clock: trio.testing.MockClock) -> None:
    client, outbox = ready_client(connection()), Outbox[ApiToSupervisor](10)
    client.on_supervisor(outbox)

    state = await client.state()

    assert (Role.SUPERVISOR.value,) == state.silent
    assert [Role.API] == [report.role for report in state.reports]
    assert 2 * STATE_TIMEOUT_S == pytest.approx(trio.current_time())


async def test_without_a_supervisor_the_process_reports_itself() -> None:
    state = await ready_client(connection()).state()

    assert (Role.SUPERVISOR.value,) == state.silent


class Full:
    """A backlog without any room."""

    def take(self, count: int) -> object | None:
        return "full"

    def give_back(self, count: int) -> None:
        raise AssertionError("nothing was booked")


async def test_a_reader_that_fetches_too_little_loses_its_request_alone() -> None:
    text = connection()
    client = ready_client(text)
    with contextlib.ExitStack() as owner:
        slow, other = opened(client, owner), opened(client, owner)
        for stream in (slow, other):
            stream.bound(Full())
            client.on_text(Accepted(request=stream.request, prompt_tokens=1))
        client.on_text(emitted_text(slow, other))
        await other.receive()
        client.on_text(emitted_text(slow, other))

        with pytest.raises(BacklogFull):
            await slow.receive()
        assert 1 == len(await other.receive())
        aborts = [message for message in await emitted(text) if isinstance(message, Abort)]
        assert [Abort(request=slow.request, reason=AbortReason.OVER_BUDGET)] == aborts


def emitted_text(*streams: RequestStream) -> TextEmitted:
    """One token for each."""
    return TextEmitted(
        requests=pack_i64(stream.request for stream in streams),
        choices=pack_i32([0] * len(streams)),
        texts=("x",) * len(streams),
        token_counts=pack_i32([1] * len(streams)),
        token_ids=pack_i32([7] * len(streams)),
        finish_reasons=pack_i8([0] * len(streams)),
        matched_stops=(None,) * len(streams),
        ended=b"",
        ended_prompt_tokens=b"",
        ended_completion_tokens=b"",
        ended_cached_tokens=b"",
        ended_errors=(),
    )


async def test_what_a_start_made_is_kept_from_the_garbage_collector_once_the_engine_is_ready() -> None:
    client = EngineClient(api=ApiId(5), pid=1, max_open_requests=1, draw_seed=lambda: 77)
    frozen = list[EnginePhase]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(freeze_when_ready, client, lambda: frozen.append(client.status().phase))
        for status in (RESTARTING, READY, RESTARTING, READY):
            await trio.testing.wait_all_tasks_blocked()
            client.on_status(status, ())
    assert [EnginePhase.READY] == frozen
