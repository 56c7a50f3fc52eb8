"""Builds that break one promise each: the harness must say so, in a single run wherever the fault lies in the run's way."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest
import trio

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import PageId, StepId
from layered_llm.domain.messages import supervision
from layered_llm.domain.messages.api_text import Abort, TextEmitted
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.scheduler_runtime import StepCompleted, StepFailed
from layered_llm.domain.messages.text_scheduler import RequestsFinished
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import RequestEnded
from layered_llm.runtime.device.device import HostDevice
from layered_llm.runtime.device.slots import SlotLedger
from layered_llm.scheduling.pages import QuarantinePool
from layered_llm.scheduling.plan import PlannedStep
from layered_llm.scheduling.running import RunningChoices
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.open_requests import OpenRequests
from layered_llm.service.engine_client.request_stream import Phase, RequestStream
from layered_llm.service.workers.runtime_ranks import RuntimeRanks
from layered_llm.testing import Engine, EngineStream, InlineEngineOptions, Rejected, Target, hash_script
from layered_llm.testing.cancel_everywhere import Failure, Points, cancel_everywhere
from layered_llm.testing.deterministic import run_deterministic
from layered_llm.testing.injection import Fault, StepsOf
from layered_llm.testing.inline_engine import open_inline_engine
from layered_llm.testing.scenario_parts import beside, library
from layered_llm.testing.scenarios import all_scenarios
from layered_llm.testing.wire_audit import WireAudit
from layered_llm.text.core import Outgoing, TextCore
from layered_llm.transport.outbox import DeferredSends, Outbox

OPTIONS = InlineEngineOptions(script=hash_script(97, 26))
DECODING = 6
"""A step of the target behind which it waits for its second token."""


def run_once(
    target: Target | None = None, *, fault: Fault = Fault.CANCEL, step: int = DECODING, steps_of: StepsOf = StepsOf.TARGET
) -> tuple[Failure, ...]:
    """The failures of one run with a fault."""
    target = target or Target(name="faulty", run=library(max_tokens=8), options=OPTIONS)
    return cancel_everywhere(target, seeds=[0], faults=[fault], points=Points(only=(steps_of, step))).failures


def broken(failures: Iterable[Failure]) -> str:
    return "\n".join(map(str, failures))


def test_a_right_build_passes() -> None:
    assert () == run_once()


def test_a_lost_abort_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    emit: Callable[..., None] = Outbox.emit

    def emit_all_but_aborts(self: Outbox[Any], message: object) -> None:
        if isinstance(message, Abort):
            self.release()
        else:
            emit(self, message)

    monkeypatch.setattr(Outbox, "emit", emit_all_but_aborts)

    assert "C2: 1 submits and aborts are on their way when the scope is left, 2 are owed" in broken(run_once())


def test_an_abort_emitted_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    emit: Callable[..., None] = Outbox.emit

    def emit_aborts_twice(self: Outbox[Any], message: object) -> None:
        if isinstance(message, Abort):
            self.reserve()
            emit(self, message)
        emit(self, message)

    monkeypatch.setattr(Outbox, "emit", emit_aborts_twice)

    assert "C2: request" in broken(run_once())
    assert "is aborted 2 times" in broken(run_once())


def test_an_abort_by_a_detached_task_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    emit: Callable[..., None] = Outbox.emit

    async def emit_later(outbox: Outbox[Any], message: object) -> None:
        await trio.lowlevel.checkpoint()
        emit(outbox, message)

    def emit_aborts_in_background(self: Outbox[Any], message: object) -> None:
        if isinstance(message, Abort):
            trio.lowlevel.spawn_system_task(emit_later, self, message)
        else:
            emit(self, message)

    monkeypatch.setattr(Outbox, "emit", emit_aborts_in_background)

    assert "C2: 1 submits and aborts are on their way when the scope is left, 2 are owed" in broken(run_once())


def test_an_abort_after_the_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def close_always(self: RequestStream, reason: AbortReason) -> None:
        self._leave(self, reason)

    monkeypatch.setattr(RequestStream, "close", close_always)

    assert run_once(step=0)


def test_a_request_that_outlives_its_scope_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Callable[..., EngineStream | Rejected] = EngineClient.open

    def open_for_nobody(self: EngineClient, _owner: contextlib.ExitStack, *asked: object) -> EngineStream | Rejected:
        return opened(self, contextlib.ExitStack(), *asked)

    monkeypatch.setattr(EngineClient, "open", open_for_nobody)

    assert "are open although the scope that opened them is left" in broken(run_once())


def test_pages_of_a_failed_row_that_are_found_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningChoices, "distrust", lambda *_: None)
    target = next(target for target in all_scenarios() if target.name == "row-fails")

    assert "which belonged to a row that failed" in broken(run_once(target, fault=Fault.CANCEL, step=0))


UNEVEN = next(target for target in all_scenarios() if target.name == "rows-uneven")


def test_rows_that_yield_any_number_of_tokens_pass() -> None:
    assert () == run_once(UNEVEN, step=0)


def test_a_scheduler_that_takes_one_token_of_a_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlannedStep, "yielding", lambda self: self.sampled)

    assert run_once(UNEVEN, step=0)


def test_a_scheduler_that_takes_no_planned_token_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningChoices, "_take_unused_back", lambda _self, planned: planned.counts)

    assert run_once(UNEVEN, step=0)


def test_a_ledger_that_counts_a_token_for_each_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: Callable[..., None] = SlotLedger.sampled
    monkeypatch.setattr(SlotLedger, "sampled", lambda self, inputs, _counts=None: sampled(self, inputs))

    assert run_once(UNEVEN, step=0)


def test_a_device_that_executes_the_later_of_two_steps_first_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostDevice, "collect", lambda self: self._execute(self._submitted.pop()))

    assert "a row names a slot that is not open" in broken(run_once())


def test_a_ledger_that_does_not_count_what_was_sampled_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotLedger, "sampled", lambda *_: None)

    assert "goes on before its prefill is complete: 11 tokens are known, 11 computed" in broken(run_once())


def broken_by_a_rank_that_fails(failing_rank: int) -> list[str]:
    """What the audit finds in a run of two ranks, of which one fails at the third step, while a request decodes."""
    options = attrs.evolve(OPTIONS, ranks=2, failing_step=(failing_rank, StepId(3)))
    audit = WireAudit(trio.current_time)

    async def generate(client: EngineClient) -> None:
        with contextlib.ExitStack() as owner:
            stream = client.open(owner, Prompt.of_text("hello"), SamplingParams(max_tokens=8, seed=0, ignore_eos=True))
            assert isinstance(stream, RequestStream)
            await stream.verdict()
            with contextlib.suppress(EngineLost):
                while not any(isinstance(event, RequestEnded) for event in await stream.receive()):
                    pass

    async def run() -> None:
        async with open_inline_engine(options, audit) as engine:
            await generate(engine.client)

    run_deterministic(run, seed=0)
    return audit.broken


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_rank_whose_failure_is_heeded_passes(failing_rank: int) -> None:
    assert [] == broken_by_a_rank_that_fails(failing_rank)


def test_a_rank_whose_failure_is_ignored_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    hear: Callable[..., StepCompleted | None] = RuntimeRanks.hear

    def ignore_failures(self: RuntimeRanks, rank: str, word: object, now_s: float) -> StepCompleted | None:
        return None if isinstance(word, StepFailed) else hear(self, rank, word, now_s)

    monkeypatch.setattr(RuntimeRanks, "hear", ignore_failures)

    assert "is sent after a rank has failed" in "\n".join(broken_by_a_rank_that_fails(1))


async def _all_tokens(client: EngineClient, late: Callable[[RequestStream], TextEmitted]) -> tuple[int, ...]:
    """What the reader of a request gets, to which an answer comes that is not its own."""
    tokens: tuple[int, ...] = ()
    with contextlib.ExitStack() as owner:
        stream = client.open(owner, Prompt.of_text("hello"), SamplingParams(max_tokens=8, seed=0, ignore_eos=True))
        assert isinstance(stream, RequestStream)
        await stream.verdict()
        client.on_text(late(stream))
        while True:
            for event in await stream.receive():
                if isinstance(event, RequestEnded):
                    return tokens
                tokens += event.token_ids


def tokens_beside_a_late_answer(monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[int, ...], list[str]]:
    """What a request gets that was submitted once before, whose first answer still comes, and what the audit finds."""
    opened: Callable[..., RequestStream] = OpenRequests.open

    def open_again(self: OpenRequests, *asked: Any, **more: Any) -> RequestStream:
        stream = opened(self, *asked, **more)
        stream.incarnation = 1
        return stream

    monkeypatch.setattr(OpenRequests, "open", open_again)
    audit = WireAudit(trio.current_time)

    async def run() -> tuple[int, ...]:
        async with open_inline_engine(OPTIONS, audit) as engine:
            return await _all_tokens(engine.client, one_late_token)

    return run_deterministic(run, seed=0), audit.broken


def one_late_token(stream: RequestStream) -> TextEmitted:
    return TextEmitted(
        requests=pack_i64([stream.request]),
        choices=pack_i32([0]),
        texts=("late",),
        token_counts=pack_i32([1]),
        token_ids=pack_i32([1]),
        finish_reasons=pack_i8([0]),
        matched_stops=(None,),
        ended=b"",
        ended_prompt_tokens=b"",
        ended_completion_tokens=b"",
        ended_cached_tokens=b"",
        ended_errors=(),
    )


def test_a_late_answer_of_an_earlier_incarnation_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, broken = tokens_beside_a_late_answer(monkeypatch)

    assert (8, False, []) == (len(tokens), 1 in tokens, broken)


def test_a_client_that_takes_a_late_answer_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    on_text: Callable[..., None] = OpenRequests.on_text

    def take_all(self: OpenRequests, message: TextEmitted, now_s: float) -> None:
        on_text(self, attrs.evolve(message, incarnation=1), now_s)

    monkeypatch.setattr(OpenRequests, "on_text", take_all)

    assert 1 in tokens_beside_a_late_answer(monkeypatch)[0]


def test_an_abort_that_names_another_incarnation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    emit: Callable[..., None] = Outbox.emit

    def emit_aborts_of_the_next(self: Outbox[Any], message: object) -> None:
        emit(self, attrs.evolve(message, incarnation=1) if isinstance(message, Abort) else message)

    monkeypatch.setattr(Outbox, "emit", emit_aborts_of_the_next)

    assert "has incarnation 0, it is spoken of as 1" in broken(run_once())


def test_pages_freed_twice_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    give_back: Callable[..., None] = QuarantinePool.give_back

    def give_back_twice(self: QuarantinePool[PageId], ids: Iterable[PageId], last_step: StepId) -> None:
        given = tuple(ids)
        give_back(self, given, last_step)
        give_back(self, given, last_step)

    monkeypatch.setattr(QuarantinePool, "give_back", give_back_twice)

    assert "owned pages are not all pages, each once" in broken(run_once())


def test_pages_freed_while_a_step_in_flight_writes_them_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_back_at_once(self: QuarantinePool[PageId], ids: Iterable[PageId], last_step: StepId) -> None:
        self.free.extend(ids)

    monkeypatch.setattr(QuarantinePool, "give_back", give_back_at_once)
    few = InlineEngineOptions(script=hash_script(97, 26), pages=12)
    target = Target(name="few-pages", run=library(max_tokens=16), beside=(beside(max_tokens=16),), options=few)

    failures = cancel_everywhere(target, seeds=[0], faults=[Fault.CANCEL], points=Points(every=0, engine_every=24)).failures

    assert "which a step in flight writes" in broken(failures)


def test_pages_that_are_never_freed_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: QuarantinePool[PageId], ids: Iterable[PageId], last_step: StepId) -> None:
        return

    monkeypatch.setattr(QuarantinePool, "give_back", keep)

    assert "C7" in broken(run_once())


def test_an_entry_that_the_text_core_forgets_to_drop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    finished: Callable[..., Outgoing] = TextCore._finished

    def keep(self: TextCore, message: RequestsFinished) -> Outgoing:
        kept = dict(self._admitted)
        outgoing = finished(self, message)
        self._admitted.update(kept)
        return outgoing

    monkeypatch.setattr(TextCore, "_finished", keep)

    assert "1 entries are left in admitted" in broken(run_once())


def test_a_request_that_the_client_forgets_to_drop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    leave: Callable[..., None] = OpenRequests._leave

    def keep(self: OpenRequests, stream: RequestStream, phase: Phase, abort: Abort | None = None) -> None:
        leave(self, stream, phase, abort)
        self.streams[stream.request] = stream

    monkeypatch.setattr(OpenRequests, "_leave", keep)

    assert "1 entries are left in requests" in broken(run_once())


def test_an_abort_that_the_text_core_does_not_pass_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    abort: Callable[..., Outgoing] = TextCore.abort

    def swallow(self: TextCore, message: Abort) -> Outgoing:
        abort(self, message)
        return Outgoing()

    monkeypatch.setattr(TextCore, "abort", swallow)

    assert "C3: 1 aborts were emitted, 0 handled, 0 late, 0 lost" in broken(run_once())


def test_an_engine_that_is_quiescent_while_an_abort_is_on_its_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_aborts_on_their_way", lambda _state: False)
    slow = InlineEngineOptions(script=hash_script(97, 26), largest_delay_s=0.5)
    target = Target(name="faulty", run=library(max_tokens=8), options=slow)

    failures = cancel_everywhere(target, seeds=range(8), faults=[Fault.CANCEL], points=Points(every=2)).failures

    assert "C3: 1 aborts were emitted, 0 handled, 0 late, 0 lost" in broken(failures)


def test_output_that_depends_on_who_was_aborted_beside_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(name="crowd", run=library(max_tokens=8), beside=(beside(max_tokens=16),), options=OPTIONS)
    abort: Callable[..., Any] = TextCore.abort

    def spoil(self: TextCore, message: Abort) -> Outgoing:
        for request in self._admitted.values():
            for choice in request.choices:
                choice.text.push(ord("!"))
        outgoing: Outgoing = abort(self, message)
        return outgoing

    monkeypatch.setattr(TextCore, "abort", spoil)

    assert run_once(target)


def test_ends_that_are_owed_to_a_slow_process_and_never_paid_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = (one for one in all_scenarios() if one.name == "process-stalls")
    monkeypatch.setattr(DeferredSends, "retry", lambda _self: None)

    assert "TooSlowError" in broken(run_once(target, fault=Fault.STALL, step=4))


def test_a_dead_process_whose_requests_go_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_a_little(engine: Engine, _disconnect: trio.Event) -> None:
        with contextlib.ExitStack() as owner:
            stream = engine.open(owner, Prompt.of_text("a prompt"), SamplingParams(max_tokens=110))
            assert not isinstance(stream, Rejected)
            await stream.verdict()
            await stream.receive()

    slow = InlineEngineOptions(script=hash_script(97, 26), step_s=1.0)
    target = Target(name="dying", run=read_a_little, options=slow, in_own_process=True)
    monkeypatch.setattr(TextCore, "api_gone", lambda *_arguments: Outgoing())

    assert "C7: text 0 holds 1 requests" in broken(run_once(target, fault=Fault.DEATH, step=2))
