"""The real scheduler between made-up traffic and a device that is a formula, in simulated time."""

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

import attrs
from benchmarks.simulated_traffic import Conversation

from layered_llm.domain.columns import pack_i32, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, StepCompleted
from layered_llm.domain.messages.text_scheduler import (
    Admit,
    Queued,
    Refused,
    RequestsFinished,
    StepsTaken,
    TokenSampling,
    TokensEmitted,
)
from layered_llm.domain.placement import Placement
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.emission import Effects
from layered_llm.scheduling.plan import NextStep
from layered_llm.scheduling.policy import SchedulingPolicy
from layered_llm.scheduling.statistics import SchedulerStatistics

WORKER = TextId(0)
SAMPLED_ID = -1
"""What every step samples. Answers of different conversations stand behind different prompts, so nothing is shared by it."""
GREEDY = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=())


@attrs.frozen(kw_only=True)
class DeviceCost:
    """Time of a step, in microseconds, as a sum of what it computes."""

    step_us: float
    prefill_token_us: float
    decode_row_us: float
    context_row_us: float
    """For each token in front of a row: its keys and values are read once."""
    context_pair_us: float
    """For each token of a row and each token in front of it: attention's arithmetic."""
    host_us: int
    """From the end of a step to the start of the next one that was planned with its result: scheduler and messages. While two
    steps are in flight the device does not wait for it."""

    def of(self, step: ExecuteStep) -> int:
        time_us = self.step_us
        rows = zip(unpack_i32(step.starts), unpack_i32(step.counts), unpack_i8(step.samples), strict=True)
        for start, count, samples in rows:
            is_decode = count == 1 and samples
            time_us += self.decode_row_us if is_decode else self.prefill_token_us * count
            time_us += (self.context_row_us + self.context_pair_us * count) * start
        return round(time_us) if step.row_count else 0


@attrs.define(kw_only=True)
class RequestTimes:
    """What the client of one request sees. All times count from the start of the simulation."""

    arrived_us: int
    conversation: Conversation
    turn: int
    prompt_ids: list[int]
    token_us: list[int] = attrs.field(factory=list)
    is_refused: bool = False


@attrs.frozen(kw_only=True)
class Outcome:
    """One simulated run."""

    requests: tuple[RequestTimes, ...]
    waited_us: tuple[int, ...]
    """From the arrival of each request to its first step."""
    end_us: int
    busy_us: int
    """Time that the device computed."""
    statistics: SchedulerStatistics


class SimulatedEngine:
    """Events in the order of their times, and behind each moment's events as many steps as may be sent."""

    def __init__(
        self, *, limits: RuntimeLimits, policy: SchedulingPolicy, cost: DeviceCost, on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called for each request that ends or is refused."""
        self._scheduler = Scheduler(limits=limits, policy=policy)
        self._cost = cost
        self._on_end = on_end
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_count = 0
        self._now_us = 0
        self._device_free_us = 0
        self._busy_us = 0
        self._open_slots = 0
        self._cursors: dict[int, int] = {}
        """Where the next row of each slot starts."""
        self._requests: list[RequestTimes] = []
        self._waited_us: list[int] = []

    def run(self, traffic: Iterable[Conversation]) -> Outcome:
        """Until the last answer is there."""
        for one in traffic:
            self._at(one.start_us, partial(self._ask, one, 0, []))
        while self._events:
            self._now_us = self._events[0][0]
            while self._events and self._events[0][0] == self._now_us:
                heapq.heappop(self._events)[2]()
            while isinstance(step := self._scheduler.plan(self._now_us), NextStep):
                self._waited_us += step.waited_us
                self._execute(step.message)
        return Outcome(
            requests=tuple(self._requests),
            waited_us=tuple(self._waited_us),
            end_us=self._now_us,
            busy_us=self._busy_us,
            statistics=self._scheduler.statistics(),
        )

    def _at(self, time_us: int, action: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (time_us, self._event_count, action))

    def _ask(self, conversation: Conversation, turn: int, said: list[int]) -> None:
        asked = conversation.turns[turn]
        request = RequestId(len(self._requests))
        times = RequestTimes(arrived_us=self._now_us, conversation=conversation, turn=turn, prompt_ids=[*said, *asked.new_ids])
        self._requests.append(times)
        admit = Admit(
            request=request,
            choices=1,
            prompt_ids=pack_i32(times.prompt_ids),
            max_tokens=asked.output_tokens,
            sampling=GREEDY,
            placement=Placement(priority=conversation.priority),
        )
        self._receive(self._scheduler.handle(WORKER, admit, self._now_us))

    def _execute(self, step: ExecuteStep) -> None:
        """The device starts a step when it has it and the one before is done."""
        device_us = self._cost.of(self._with_starts(step))
        arrives_us = self._now_us + self._cost.host_us // 2
        self._device_free_us = max(self._device_free_us, arrives_us) + device_us
        self._busy_us += device_us
        self._open_slots += len(step.opened) - len(unpack_i32(step.retired))
        sampled = sum(unpack_i8(step.samples))
        result = StepCompleted(
            step=step.step,
            token_ids=pack_i32([SAMPLED_ID] * sampled),
            device_us=device_us,
            open_slots=self._open_slots,
        )
        self._at(self._device_free_us + self._cost.host_us // 2, partial(self._complete, result))

    def _with_starts(self, step: ExecuteStep) -> ExecuteStep:
        """The step with the start of each row that goes on."""
        starts: list[int] = []
        for slot, start, count in zip(*map(unpack_i32, (step.slots, step.starts, step.counts)), strict=True):
            starts.append(self._cursors[slot] if start == GO_ON else start)
            self._cursors[slot] = starts[-1] + count
        return attrs.evolve(step, starts=pack_i32(starts))

    def _complete(self, result: StepCompleted) -> None:
        self._receive(self._scheduler.complete(result))

    def _receive(self, effects: Effects) -> None:
        for outgoing in effects.outgoing:
            match outgoing.message:
                case Queued():
                    pass
                case Refused(request=request):
                    self._requests[request].is_refused = True
                    self._on_end()
                case TokensEmitted() as tokens:
                    for row in unpack_i64(tokens.requests):
                        self._requests[row].token_us.append(self._now_us)
                    self._scheduler.handle(WORKER, StepsTaken(step=tokens.step))
                case RequestsFinished() as finished:
                    for row in unpack_i64(finished.requests):
                        self._end(self._requests[row])
                case _:
                    assert_never(outgoing.message)

    def _end(self, times: RequestTimes) -> None:
        self._on_end()
        following = times.turn + 1
        if following < len(times.conversation.turns):
            said = [*times.prompt_ids, *([SAMPLED_ID] * len(times.token_us))]
            think_us = times.conversation.turns[following].think_us
            self._at(self._now_us + think_us, partial(self._ask, times.conversation, following, said))
