"""The scheduler: answers text workers, plans steps, takes their results. Synchronous, and the only writer of its state.

Must not know: text, tensors, bytes on a wire, clocks, randomness, why a client left.

Invariants (recomputed by `check`): a request that was Queued is finished exactly once for each choice; after an abort no later
step names the request, and its pages are free at the latest when the steps in flight are acknowledged; nothing is kept for a
request that ended.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Final, assert_never

from layered_llm.domain.columns import unpack_i8, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.logprobs import NO_ENTRIES, each_row
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Admit,
    Queued,
    Refused,
    StepsTaken,
    StopChoice,
    TextToScheduler,
)
from layered_llm.scheduling.emission import Effects, Gathered, Outgoing, TokenRow
from layered_llm.scheduling.flight import AbortReleases, StepsInFlight
from layered_llm.scheduling.invariants import violations
from layered_llm.scheduling.open_requests import Load, OpenRequests, QueueDeadlines, judge
from layered_llm.scheduling.pages import NO_STEP
from layered_llm.scheduling.plan import Hold, Idle, NextStep, PlannedStep, StepTrace
from layered_llm.scheduling.policy import SchedulingPolicy
from layered_llm.scheduling.running import RunningChoices
from layered_llm.scheduling.sequences import OUTPUT_TOKEN_COST, Phase, Request, Sequence, TextWorker
from layered_llm.scheduling.statistics import Counters, SchedulerState, SchedulerStatistics, summarize
from layered_llm.scheduling.waiting import WaitingQueue, order_for

_BY_ITSELF: Final = (FinishReason.STOP, FinishReason.LENGTH)
_NO_FAILURES: Final[Mapping[Sequence, FinishReason]] = MappingProxyType({})


class Scheduler:
    """Decides what runs next. The shell around it moves messages: `handle` whatever came, `plan` until Idle, `complete`."""

    def __init__(self, *, limits: RuntimeLimits, policy: SchedulingPolicy, traces: bool = False) -> None:
        """With `traces` each step comes with a trace of it, which costs as much as planning it."""
        self._limits = limits
        self._policy = policy
        self._traces = traces
        self._workers: dict[TextId, TextWorker] = {}
        self._open = OpenRequests(page_size_tokens=limits.page_size_tokens, shares_prefixes=policy.shares_prefixes)
        self._running = RunningChoices(limits=limits, policy=policy)
        order = order_for(policy.admission_order, cached_tokens=self._cached_tokens)
        self._waiting = WaitingQueue(order, max_overtakes=policy.max_overtakes)
        self._flight = StepsInFlight(policy.max_steps_in_flight)
        self._queue_deadlines = QueueDeadlines(policy.max_queue_us)
        self._releases = AbortReleases()
        self._counters = Counters()
        self._has_failed = False
        """Whether a row ever failed."""
        self._state = SchedulerState(
            limits=limits,
            counters=self._counters,
            workers=self._workers,
            open=self._open,
            waiting=self._waiting,
            running=self._running,
            flight=self._flight,
            queue_deadlines=self._queue_deadlines,
            releases=self._releases,
        )

    def handle(self, worker: TextId, message: TextToScheduler, now_us: int = 0) -> Effects:
        """`now_us` is the time of arrival, which measurements of queue time and of an abort begin with.

        Raises InvariantViolated for what no correct text worker says: an id used twice, another worker's request.
        """
        match message:
            case Admit():
                return Effects(outgoing=(Outgoing(worker, self._admit(self._worker(worker), message, now_us)),))
            case AbortRequest():
                return self._abort(worker, message, now_us)
            case StopChoice():
                return self._stop(worker, message, now_us)
            case StepsTaken():
                self._worker(worker).taken(message.step)
                return Effects()
            case _:
                assert_never(message)

    def expire(self, now_us: int) -> Effects:
        """Ends the requests that have waited too long for their first choice to start; `plan` again after it."""
        gathered = Gathered(now_us)
        for request_id in self._queue_deadlines.overdue(now_us):
            self._end_all(self._open.by_id[request_id], FinishReason.QUEUE_TIMEOUT, gathered)
            self._counters.queue_timeouts += 1
        return gathered.effects(NO_STEP)

    def next_expiry_us(self, now_us: int) -> int | None:
        """When to ask `expire` next, whoever is queued until then; None for never."""
        return self._queue_deadlines.next_us(now_us)

    def plan(self, now_us: int = 0) -> NextStep | Idle:
        """The next step to send. Idle until something was handled, completed or expired."""
        if len(self._flight.steps) >= self._flight.max_steps:
            return Idle()
        hold = self._start_waiting()
        planned = self._running.plan(self._flight.next_step)
        for sequence in planned.preempted:
            self._waiting.push_preempted(sequence)
            self._open.of(sequence).preemptions += 1
        self._counters.preemptions += len(planned.preempted)
        if not planned.rows and not planned.retired:
            return Idle()
        self._flight.sent(planned)
        waited_us = tuple(self._first_run(planned.started, now_us)) if planned.started else ()
        trace = self._trace(planned, hold) if self._traces else None
        return NextStep(planned.message(), sum(planned.counts), waited_us, trace)

    def complete(self, result: StepCompleted, now_us: int = 0) -> Effects:
        """Takes the result of the oldest step in flight.

        Tokens of choices that ended meanwhile are dropped. A row that failed ends its request. Each text worker gets at most
        one TokensEmitted and, after it, one RequestsFinished. Raises InvariantViolated for another step's result and for too
        few or too many tokens.
        """
        gathered = Gathered(now_us)
        planned = self._flight.answered(result)
        failed = _failures(planned, result) if result.failed_rows else _NO_FAILURES
        self._running.acknowledge(planned, device_us=result.device_us, failed=failed)
        self._counters.steps += 1
        self._counters.prefill_tokens += planned.prefill_tokens
        yields = planned.yields
        self._counters.decode_tokens += planned.decode_rows if yields is None else sum(yields[: planned.decode_rows])
        gathered.is_first_failure = bool(failed) and not self._has_failed
        for sequence, reason in failed.items():
            self._has_failed = True
            self._fail(sequence, reason, gathered)
        if result.prompt_logprobs is not None:
            planned.keep_prompt_logprobs(result.prompt_logprobs)
        gathered.new_tokens = self._take_tokens(planned, result, gathered)
        if planned.prefill_tokens:
            gathered.new_tokens += planned.count_computed()
        gathered.releases = self._releases.acknowledge(planned.step)
        return gathered.effects(planned.step)

    def flush_cache(self) -> int:
        """Forgets every prefix that no running choice uses; how many pages that freed."""
        return self._running.pages.flush()

    @property
    def is_quiescent(self) -> bool:
        """No request is open, no step in flight, no slot to retire: every page is free or cached. Credit may still be out."""
        return not self._open.by_id and not self._flight.steps and not self._running.slots_to_retire

    def check(self) -> tuple[str, ...]:
        """What is broken, one sentence each; empty is right. Takes time in proportion to all pages and choices."""
        return tuple(violations(self._state))

    def statistics(self) -> SchedulerStatistics:
        return summarize(self._state)

    def _worker(self, worker: TextId) -> TextWorker:
        if worker not in self._workers:
            self._workers[worker] = TextWorker(worker, self._policy.max_unacknowledged_steps)
        return self._workers[worker]

    def _admit(self, worker: TextWorker, admit: Admit, now_us: int) -> Queued | Refused:
        if admit.request in self._open.by_id:
            raise InvariantViolated(f"request {admit.request} is admitted while it is open")
        load = Load(
            waiting_requests=self._waiting.request_count,
            streams=len(self._open.by_id),
            tenant_streams=self._open.tenants.streams(admit.placement.tenant),
        )
        refused = judge(admit, limits=self._limits, policy=self._policy, load=load)
        if refused is not None:
            self._counters.refused[refused.reason] += 1
            return refused
        request = self._open.add(admit, worker, now_us=now_us, least_served=self._waiting.least_served)
        self._queue_deadlines.came(admit.request, now_us)
        for sequence in request.sequences:
            self._waiting.push(sequence)
        self._counters.requests_accepted += 1
        self._counters.choices_accepted += admit.choices
        return Queued(request=admit.request)

    def _abort(self, worker: TextId, message: AbortRequest, now_us: int) -> Effects:
        self._worker(worker).aborts_taken += 1
        request = self._open.find(worker, message.request)
        if request is None:
            self._counters.aborts_late += 1
            return Effects()
        self._counters.aborts_handled += 1
        last_step = max(map(attrgetter("last_step"), request.sequences))
        gathered = Gathered(now_us)
        self._end_all(request, FinishReason.ABORT, gathered)
        gathered.releases = self._releases.aborted(message.request, last_step, now_us)
        return gathered.effects(NO_STEP)

    def _stop(self, worker: TextId, message: StopChoice, now_us: int) -> Effects:
        request = self._open.find(worker, message.request)
        if request is None:
            self._counters.stops_late += 1
            return Effects()
        if not 0 <= message.choice < len(request.sequences):
            raise InvariantViolated(f"request {message.request} has no choice {message.choice} to stop")
        sequence = request.sequences[message.choice]
        if sequence.phase is Phase.ENDED:
            self._counters.stops_late += 1
            return Effects()
        if not 0 < message.output_tokens <= sequence.output_tokens:
            raise InvariantViolated(
                f"choice {message.choice} of request {message.request} is stopped after {message.output_tokens} tokens, "
                f"{sequence.output_tokens} were sent"
            )
        self._counters.stops_handled += 1
        gathered = Gathered(now_us)
        self._end(sequence, FinishReason.STOP, message.output_tokens, gathered)
        return gathered.effects(NO_STEP)

    def _start_waiting(self) -> Hold:
        """Starts choices that wait; says why it starts no more."""
        while self._waiting.request_count:
            if not self._running.has_slot:
                return Hold.NO_SLOT
            sequence = self._waiting.first(self._can_start)
            if sequence is None:
                return Hold.NOBODY_READY
            if not self._running.try_start(sequence):
                return Hold.NO_PAGES
            self._waiting.take(sequence)
            self._queue_deadlines.gone(sequence.request)
            self._open.of(sequence).leader = sequence
            if self._policy.prefix_cache:
                self._counters.prefix_lookup_tokens += len(sequence.tokens)
                self._counters.prefix_hit_tokens += sequence.computed_tokens
        return Hold.NOBODY_WAITS

    def _first_run(self, started: Iterable[Sequence], now_us: int) -> Iterator[int]:
        for sequence in started:
            request = self._open.of(sequence)
            if request.started_us is None:
                request.started_us = now_us
                yield now_us - request.queued_us

    def _take_tokens(self, planned: PlannedStep, result: StepCompleted, gathered: Gathered) -> int:
        """Gives each choice its tokens and ends those that are complete; how many of the tokens are shown.

        What follows the token that ends a choice is dropped, in this result and in the next.
        """
        dropped, worker = 0, None
        rows: list[TokenRow] = []
        sequences = planned.sampled if planned.yields is None else planned.yielding()
        entries = each_row(result.logprobs, len(sequences), NO_ENTRIES)
        for sequence, token, logprobs in zip(sequences, unpack_i32(result.token_ids), entries, strict=True):
            if sequence.phase is Phase.ENDED:
                dropped += 1
                continue
            position = sequence.output_tokens
            sequence.output_tokens = position + 1
            sequence.tokens.append(token)
            sequence.tenant.served += OUTPUT_TOKEN_COST
            if sequence.worker is not worker:
                worker = sequence.worker
                rows = gathered.tokens.setdefault(worker, [])
            rows.append((sequence, position, token, logprobs))
            if not position:
                self._first_token(sequence, gathered)
            # An end id ends the choice wherever it comes: the runtime masks it until the choice has its minimum of tokens.
            if token in sequence.end_ids:
                self._end(sequence, FinishReason.STOP, sequence.output_tokens, gathered)
            elif sequence.output_tokens == sequence.admit.max_tokens:
                self._end(sequence, FinishReason.LENGTH, sequence.output_tokens, gathered)
        self._counters.dropped_tokens += dropped
        return len(sequences) - dropped

    def _first_token(self, sequence: Sequence, gathered: Gathered) -> None:
        request = self._open.of(sequence)
        if request.started_us is not None and not request.has_output:
            request.has_output = True
            gathered.prefill_us.append(gathered.now_us - request.started_us)

    def _trace(self, planned: PlannedStep, hold: Hold) -> StepTrace:
        running = self._running
        return planned.trace(running=running.count, waiting=self._waiting.choice_count, pages=running.pages, hold=hold)

    def _can_start(self, sequence: Sequence) -> bool:
        """A choice waits for the pages that another one of its request computes, so that their prompt is computed once."""
        return not (self._policy.prefix_cache and self._open.of(sequence).is_prompt_under_way)

    def _cached_tokens(self, sequence: Sequence) -> int:
        return self._running.pages.find_tokens(sequence.cache_root, sequence.admit.prompt_ids)

    def _end_all(self, request: Request, reason: FinishReason, gathered: Gathered) -> None:
        for sequence in request.sequences:
            if sequence.phase is not Phase.ENDED:
                self._end(sequence, reason, sequence.output_tokens, gathered)

    def _fail(self, sequence: Sequence, reason: FinishReason, gathered: Gathered) -> None:
        """Ends the request of a choice that has no result: its answer would have a hole, whatever its other choices become."""
        self._running.distrust(sequence)
        if sequence.phase is not Phase.ENDED:
            self._end_all(self._open.of(sequence), reason, gathered)

    def _end(self, sequence: Sequence, reason: FinishReason, output_tokens: int, gathered: Gathered) -> None:
        if sequence.phase is Phase.WAITING:
            self._waiting.remove(sequence)
        else:
            self._running.end(sequence)
        sequence.phase = Phase.ENDED
        gathered.finished.setdefault(sequence.worker, []).append((sequence.request, sequence.choice, reason, output_tokens))
        self._counters.finished[reason] += 1
        request = self._open.choice_ended(sequence)
        if not request.open_choices:
            self._queue_deadlines.gone(sequence.request)
            if reason in _BY_ITSELF and request.started_us is not None:
                gathered.ended.append((gathered.now_us - request.started_us, request.preemptions))


def _failures(planned: PlannedStep, result: StepCompleted) -> Mapping[Sequence, FinishReason]:
    rows = unpack_i32(result.failed_rows)
    if not 0 <= min(rows) <= max(rows) < len(planned.rows):
        raise InvariantViolated(f"step {result.step} has {len(planned.rows)} rows, {rows.tolist()} failed")
    return {planned.rows[row]: FinishReason(code) for row, code in zip(rows, unpack_i8(result.failures), strict=True)}
