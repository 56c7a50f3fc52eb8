import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial

import attrs
import pytest
import trio
from trio.testing import MockClock

from layered_llm.domain.columns import pack_i32, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, compose_request_id
from layered_llm.domain.limits import EngineLimits, RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import (
    ExecuteStep,
    RuntimeReady,
    RuntimeToScheduler,
    RuntimeWarmingUp,
    SchedulerToRuntime,
    StepCompleted,
    StepFailed,
)
from layered_llm.domain.messages.supervision import (
    ApiDied,
    EngineToSupervisor,
    Heartbeat,
    ProcessReady,
    Role,
    StateQuery,
    StateReport,
    Stop,
    SupervisorToEngine,
)
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Admit,
    Queued,
    RequestsFinished,
    SchedulerToText,
    TextToScheduler,
    TokenSampling,
    TokensEmitted,
)
from layered_llm.service.settings.settings import Settings
from layered_llm.service.workers.runtime_ranks import (
    STEP_DEADLINE_PER_TOKEN_S,
    STEP_DEADLINE_S,
    WARM_UP_SILENCE_S,
    RuntimeFailed,
)
from layered_llm.service.workers.scheduler import scheduling_policy, work_scheduler
from layered_llm.service.workers.scheduler_loop import StepOverdue
from layered_llm.testing.memory_links import MemoryDealerLink, MemoryLinks, MemoryPeerLink
from layered_llm.transport.link_specs import ENGINE_SUPERVISOR, SCHEDULER_RUNTIME, TEXT_SCHEDULER
from layered_llm.transport.peers import peer_name
from support.metrics import samples_by_name
from support.service_ends import ADDRESSES, TEST_S, TEXT_NAME

LIMITS = RuntimeLimits(pages=16, page_size_tokens=4, slots=4, context_tokens=64, vocabulary_size=300)
READY = RuntimeReady(limits=LIMITS, pid=7)
PROMPT_TOKENS = 5
SAMPLING = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=1, min_tokens=0, end_ids=())


def request(counter: int) -> RequestId:
    return compose_request_id(ApiId(1), counter)


def admit(counter: int = 1, max_tokens: int = 4) -> Admit:
    return Admit(
        request=request(counter),
        choices=1,
        prompt_ids=pack_i32(range(PROMPT_TOKENS)),
        max_tokens=max_tokens,
        sampling=SAMPLING,
    )


@attrs.define(eq=False, kw_only=True)
class Ends:
    """What stands around the scheduler."""

    links: MemoryLinks
    text: MemoryDealerLink[TextToScheduler, SchedulerToText]
    runtime: MemoryDealerLink[RuntimeToScheduler, SchedulerToRuntime]
    supervisor: MemoryPeerLink[SupervisorToEngine, EngineToSupervisor]
    loop: trio.Nursery
    _heard: list[EngineToSupervisor] = attrs.field(factory=list)
    _steps: list[ExecuteStep] = attrs.field(factory=list)

    async def reported(self) -> EngineToSupervisor:
        """The next word to the supervisor that is no heartbeat."""
        while not self._heard:
            received = [message for _peer, message in await self.supervisor.receive()]
            self._heard.extend(message for message in received if not isinstance(message, Heartbeat))  # type: ignore[misc]  # none is garbled
        return self._heard.pop(0)

    async def told(self, count: int) -> list[SchedulerToText]:
        """The first `count` words to the text worker."""
        words: list[SchedulerToText] = []
        while len(words) < count:
            words.extend(await self.text.receive())
        return words

    async def step(self) -> ExecuteStep:
        """The next step; with two in flight the one behind it may come at the same time."""
        while not self._steps:
            self._steps.extend(await self.runtime.receive())
        return self._steps.pop(0)

    async def complete(self, step: ExecuteStep, *token_ids: int, open_slots: int = 1) -> None:
        await self.runtime.send(
            StepCompleted(step=step.step, token_ids=pack_i32(token_ids), device_us=1, open_slots=open_slots)
        )

    def order(self, message: SupervisorToEngine) -> None:
        self.supervisor.send_nowait("scheduler-0", message)


@contextlib.asynccontextmanager
async def scheduler_ends(
    first_word: RuntimeToScheduler = READY, *, overlap: bool = False, queue_timeout_s: float | None = None, ranks: int = 1
) -> AsyncIterator[Ends]:
    policy = scheduling_policy(Settings(overlap_schedule=overlap, queue_timeout_s=queue_timeout_s))
    links = MemoryLinks()
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        supervisor = enter(links.bind(ENGINE_SUPERVISOR, ADDRESSES.supervisor))
        text = enter(links.connect(TEXT_SCHEDULER, ADDRESSES.scheduler, TEXT_NAME))
        runtime = enter(links.connect(SCHEDULER_RUNTIME, ADDRESSES.runtime, peer_name(Role.RUNTIME, 0)))
        enter(trio.fail_after(TEST_S))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(work_scheduler, links, ADDRESSES, policy, ranks=ranks))
            ends = Ends(links=links, text=text, runtime=runtime, supervisor=supervisor, loop=nursery)
            await runtime.send(first_word)
            yield ends
            nursery.cancel_scope.cancel()


@contextlib.contextmanager
def raises_alone(error: type[Exception], match: str) -> Iterator[None]:
    with pytest.RaisesGroup(pytest.RaisesExc(error, match=match), flatten_subgroups=True):
        yield


async def test_the_scheduler_is_ready_when_the_runtime_is_and_tells_the_limits(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        limits = EngineLimits(context_tokens=64, vocabulary_size=300)

        assert ProcessReady(role=Role.SCHEDULER, index=0, limits=limits) == await ends.reported()


async def test_a_request_is_queued_planned_and_told_its_tokens(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.text.send(admit())
        step = await ends.step()
        await ends.complete(step, 42)
        queued, emitted = await ends.told(2)

        assert Queued(request=request(1)) == queued
        assert isinstance(emitted, TokensEmitted)
        assert [42] == unpack_i32(emitted.token_ids).tolist()
        assert [PROMPT_TOKENS] == unpack_i32(step.counts).tolist()


async def test_an_abort_retires_the_slot_by_a_step_without_rows(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.text.send(admit())
        step = await ends.step()
        await ends.text.send(AbortRequest(request=request(1), reason=AbortReason.CLIENT_GONE))
        await trio.testing.wait_all_tasks_blocked()
        await ends.complete(step, 42)
        retiring = await ends.step()

        assert 1 == len(unpack_i32(retiring.retired))
        assert 0 == retiring.row_count
        *_, finished = await ends.told(2)
        assert isinstance(finished, RequestsFinished)


async def test_a_step_that_does_not_come_back_is_overdue_in_proportion_to_its_tokens(autojump_clock: MockClock) -> None:
    with raises_alone(StepOverdue, "did not answer a step in time"):
        async with scheduler_ends() as ends:
            await ends.text.send(admit())
            await trio.sleep(10_000.0)
    assert STEP_DEADLINE_S + STEP_DEADLINE_PER_TOKEN_S * PROMPT_TOKENS == pytest.approx(trio.current_time())


async def test_each_step_has_a_deadline_of_its_own(autojump_clock: MockClock) -> None:
    with raises_alone(StepOverdue, "did not answer a step in time"):
        async with scheduler_ends() as ends:
            await ends.text.send(admit())
            step = await ends.step()
            await trio.sleep(STEP_DEADLINE_S)
            await ends.complete(step, 42)
            await trio.sleep(10_000.0)
    assert 2 * STEP_DEADLINE_S + STEP_DEADLINE_PER_TOKEN_S == pytest.approx(trio.current_time())


async def test_the_time_of_a_step_begins_when_the_step_before_it_is_back(autojump_clock: MockClock) -> None:
    with raises_alone(StepOverdue, "did not answer a step in time"):
        async with scheduler_ends(overlap=True) as ends:
            await ends.text.send(admit())
            step = await ends.step()
            await trio.sleep(STEP_DEADLINE_S + 2 * STEP_DEADLINE_PER_TOKEN_S)
            await ends.complete(step, 42)
            await trio.sleep(10_000.0)
    assert 2 * STEP_DEADLINE_S + 3 * STEP_DEADLINE_PER_TOKEN_S == pytest.approx(trio.current_time())


async def test_an_idle_runtime_is_never_overdue(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await trio.sleep(10 * STEP_DEADLINE_S)
        await ends.text.send(admit())

        assert 1 == (await ends.step()).row_count


async def test_a_step_that_failed_ends_the_scheduler_with_the_runtimes_words(autojump_clock: MockClock) -> None:
    with raises_alone(RuntimeFailed, "step 1: out of memory"):
        async with scheduler_ends() as ends:
            await ends.text.send(admit())
            step = await ends.step()
            await ends.runtime.send(StepFailed(step=step.step, message="out of memory"))
            await trio.sleep(1.0)


async def test_a_request_whose_time_in_the_queue_is_over_is_ended_though_nothing_else_happens(
    autojump_clock: MockClock,
) -> None:
    async with scheduler_ends(queue_timeout_s=5.0) as ends:
        await ends.text.send(admit(1))
        await ends.step()
        await trio.sleep(2.0)
        await ends.text.send(admit(2))
        *_, finished = await ends.told(3)

        assert 7.0 == pytest.approx(trio.current_time())
        assert isinstance(finished, RequestsFinished)
        assert [request(2)] == unpack_i64(finished.requests).tolist()
        assert [FinishReason.QUEUE_TIMEOUT] == unpack_i8(finished.reasons).tolist()


async def test_a_text_worker_that_sends_garbage_is_our_own_fault(autojump_clock: MockClock) -> None:
    with raises_alone(InvariantViolated, "text-0 sent what is no message"):
        async with scheduler_ends() as ends:
            ends.links.garble(ADDRESSES.scheduler, TEXT_NAME)
            await trio.sleep(1.0)


async def test_however_often_a_stranger_speaks_it_is_counted_each_time_and_logged_now_and_then(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with scheduler_ends() as ends:
        await ends.reported()
        for _ in range(6):
            ends.links.garble(ADDRESSES.scheduler, "stranger")
            await trio.sleep(2.1)
        ends.order(StateQuery(query=3))
        await ends.reported()
        report = await ends.reported()

    assert isinstance(report, StateReport)
    assert 6 == samples_by_name(report.metrics)["layered_llm_messages_dropped_total"]
    assert 2 == len(caplog.messages)


async def test_a_text_worker_that_cannot_be_reached_is_left_to_the_supervisor(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.text.send(admit())
        ends.links.kill(TEXT_NAME, loses_sent=False)
        await ends.complete(await ends.step(), 40)

        assert isinstance(await ends.reported(), ProcessReady)
        ends.order(StateQuery(query=3))
        assert isinstance(await ends.reported(), StateReport)


async def test_every_rank_is_sent_the_steps_as_soon_as_all_are_ready(autojump_clock: MockClock) -> None:
    async with scheduler_ends(ranks=2) as ends:
        with ends.links.connect(SCHEDULER_RUNTIME, ADDRESSES.runtime, "runtime-1") as other:
            await ends.text.send(admit())
            with trio.move_on_after(10.0) as early:
                await other.receive()
            await other.send(READY)
            (step,) = await other.receive()

            assert early.cancelled_caught
            assert step is await ends.step()


async def test_a_rank_that_fails_ends_the_scheduler_though_another_answers(autojump_clock: MockClock) -> None:
    with raises_alone(RuntimeFailed, "runtime-1, step 1: out of memory"):
        async with scheduler_ends(ranks=2) as ends:
            with ends.links.connect(SCHEDULER_RUNTIME, ADDRESSES.runtime, "runtime-1") as other:
                await other.send(READY)
                await ends.text.send(admit())
                step = await ends.step()
                await ends.complete(step, 42)
                await other.send(StepFailed(step=step.step, message="out of memory"))
                await trio.sleep(1.0)


async def test_a_runtime_that_is_ready_twice_is_our_own_fault(autojump_clock: MockClock) -> None:
    with raises_alone(InvariantViolated, "after it was ready"):
        async with scheduler_ends() as ends:
            await ends.reported()
            await ends.runtime.send(READY)
            await trio.sleep(1.0)


async def test_a_runtime_that_speaks_of_a_step_before_it_was_ready_is_our_own_fault(autojump_clock: MockClock) -> None:
    with raises_alone(InvariantViolated, "before it was ready"):
        async with scheduler_ends(StepFailed(step=1, message="no")):  # type: ignore[arg-type]  # a plain number will do
            await trio.sleep(1.0)


async def test_a_runtime_that_goes_on_warming_up_is_waited_for(autojump_clock: MockClock) -> None:
    async with scheduler_ends(RuntimeWarmingUp()) as ends:
        for _ in range(3):
            await trio.sleep(WARM_UP_SILENCE_S - 1.0)
            await ends.runtime.send(RuntimeWarmingUp())
        await ends.runtime.send(READY)
        assert isinstance(await ends.reported(), ProcessReady)


async def test_a_runtime_that_falls_silent_while_it_warms_up_hangs(autojump_clock: MockClock) -> None:
    with raises_alone(StepOverdue, "silent for 600 s while it warmed up"):
        async with scheduler_ends(RuntimeWarmingUp()):
            await trio.sleep_forever()
    assert WARM_UP_SILENCE_S == pytest.approx(trio.current_time())


async def test_an_order_for_text_workers_is_our_own_fault(autojump_clock: MockClock) -> None:
    with raises_alone(InvariantViolated, "is for text workers"):
        async with scheduler_ends() as ends:
            await ends.reported()
            ends.order(ApiDied(api=ApiId(1)))
            await trio.sleep(1.0)


async def test_the_scheduler_reports_for_the_runtime_too(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.reported()
        await ends.text.send(admit(max_tokens=1))
        await ends.complete(await ends.step(), 42)
        await ends.step()
        ends.order(StateQuery(query=5))
        runtime, scheduler = await ends.reported(), await ends.reported()

        assert isinstance(runtime, StateReport)
        assert isinstance(scheduler, StateReport)
        assert (Role.RUNTIME, 7, 1) == (runtime.role, runtime.pid, runtime.open_requests)
        assert (Role.SCHEDULER, 5, 0) == (scheduler.role, scheduler.query, scheduler.open_requests)


async def test_the_scheduler_reports_how_long_requests_waited_and_how_full_steps_were(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.reported()
        for counter in range(1, LIMITS.slots + 2):
            await ends.text.send(admit(counter, max_tokens=1))
        done = 0
        while done < LIMITS.slots + 1:
            step = await ends.step()
            await trio.sleep(1.0)
            sampled = sum(unpack_i8(step.samples))
            await ends.complete(step, *([42] * sampled), open_slots=len(step.opened))
            done += sampled
        await trio.testing.wait_all_tasks_blocked()
        ends.order(StateQuery(query=5))
        await ends.reported()
        scheduler = await ends.reported()

        assert isinstance(scheduler, StateReport)
        assert () == scheduler.violations
        samples = samples_by_name(scheduler.metrics)
        assert LIMITS.slots + 1 == samples["layered_llm_queue_time_seconds_count"]
        assert samples["layered_llm_queue_time_seconds_sum"] >= 1.0
        computed_tokens = samples["layered_llm_prompt_tokens_computed_total"]
        assert computed_tokens == pytest.approx(Settings().chunked_prefill_size * samples["layered_llm_step_fill_ratio_sum"])


async def test_the_scheduler_reports_how_soon_an_aborted_request_holds_nothing(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.reported()
        await ends.text.send(admit())
        step = await ends.step()
        await ends.text.send(AbortRequest(request=request(1), reason=AbortReason.CLIENT_GONE))
        await trio.sleep(0.25)
        await ends.complete(step, 42)
        await ends.step()
        ends.order(StateQuery(query=5))
        await ends.reported()
        scheduler = await ends.reported()

        assert isinstance(scheduler, StateReport)
        samples = samples_by_name(scheduler.metrics)
        assert 0.25 == pytest.approx(samples["layered_llm_abort_release_seconds_sum"])
        assert (1.0, 1.0) == tuple(samples[f"layered_llm_abort_release_steps_{part}"] for part in ("count", "sum"))


async def test_stop_ends_the_scheduler(autojump_clock: MockClock) -> None:
    async with scheduler_ends() as ends:
        await ends.reported()
        ends.order(Stop())
        await trio.testing.wait_all_tasks_blocked()

        assert not ends.loop.child_tasks
