"""The scheduler between a fake device and a text side that keeps the books and trusts nobody."""

from collections.abc import Iterable

import attrs

from layered_llm.domain.columns import pack_i32, rows, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId, SlotId, StepId, TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Admit,
    Queued,
    Refused,
    RequestsFinished,
    StepsTaken,
    StopChoice,
    TokenSampling,
    TokensEmitted,
)
from layered_llm.domain.placement import Placement
from layered_llm.runtime.scripted.scripted_device import Yields, one_token
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.emission import Effects
from layered_llm.scheduling.flight import AbortRelease
from layered_llm.scheduling.plan import Idle, NextStep, StepTrace
from layered_llm.scheduling.policy import AdmissionOrder, SchedulingPolicy
from support.scheduling_device import FakeDevice, Script, counting_script

ChoiceKey = tuple[int, int]


def limits(
    *, pages: int = 64, page_size: int = 4, slots: int = 16, context: int | None = None, decode_tokens: int = 1
) -> RuntimeLimits:
    return RuntimeLimits(
        pages=pages,
        page_size_tokens=page_size,
        slots=slots,
        context_tokens=pages * page_size if context is None else context,
        vocabulary_size=1 << 24,
        decode_tokens=decode_tokens,
    )


def policy(
    *,
    budget: int = 64,
    running: int = 16,
    queued: int = 64,
    credit: int = 8,
    in_flight: int = 1,
    cache: bool = True,
    shares_prefixes: bool = False,
    order: AdmissionOrder = AdmissionOrder.FIRST_COME,
    overtakes: int = 16,
    streams: int | None = None,
    all_streams: int | None = None,
    gap_us: int | None = None,
    queue_us: int | None = None,
) -> SchedulingPolicy:
    return SchedulingPolicy(
        max_step_tokens=budget,
        max_running_choices=running,
        max_queued_requests=queued,
        max_unacknowledged_steps=credit,
        max_steps_in_flight=in_flight,
        prefix_cache=cache,
        shares_prefixes=shares_prefixes,
        admission_order=order,
        max_overtakes=overtakes,
        max_streams_per_tenant=streams,
        max_streams=all_streams,
        max_token_gap_us=gap_us,
        max_queue_us=queue_us,
    )


def admit(
    request: int,
    *,
    prompt: int = 4,
    prompt_ids: Iterable[int] | None = None,
    tokens: int = 4,
    choices: int = 1,
    end_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
    salt: str | None = None,
    tenant: str = "",
    priority: int = 0,
) -> Admit:
    """A prompt of `prompt` tokens that no other request has, where `prompt_ids` does not say which."""
    own_ids = range(10_000 * request, 10_000 * request + prompt)
    return Admit(
        request=RequestId(request),
        choices=choices,
        prompt_ids=pack_i32(own_ids if prompt_ids is None else prompt_ids),
        max_tokens=tokens,
        sampling=TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=request, min_tokens=min_tokens, end_ids=end_ids),
        placement=Placement(cache_salt=salt, tenant=tenant, priority=priority),
    )


@attrs.define(kw_only=True)
class Rig:
    """A request's seed is its id, so that a slot of the device tells whose it is."""

    limits: RuntimeLimits = attrs.field(factory=limits)
    policy: SchedulingPolicy = attrs.field(factory=policy)
    script: Script = counting_script
    yields: Yields = one_token
    gives_credit: bool = True
    """Whether the text side takes every step as soon as it comes."""
    scheduler: Scheduler = attrs.field(init=False)
    device: FakeDevice = attrs.field(init=False)
    queued: list[int] = attrs.field(init=False, factory=list)
    refused: list[Refused] = attrs.field(init=False, factory=list)
    outputs: dict[ChoiceKey, list[int]] = attrs.field(init=False, factory=dict)
    cached: dict[ChoiceKey, int] = attrs.field(init=False, factory=dict)
    """Cached tokens, as told with the first token."""
    ended: dict[ChoiceKey, tuple[FinishReason, int]] = attrs.field(init=False, factory=dict)
    released: list[AbortRelease] = attrs.field(init=False, factory=list)
    completed: list[Effects] = attrs.field(init=False, factory=list)
    """Of each step."""
    planned: NextStep | None = attrs.field(init=False, default=None)
    """The last one."""
    untaken: dict[TextId, list[StepId]] = attrs.field(init=False, factory=dict)
    workers: dict[int, TextId] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.scheduler = Scheduler(limits=self.limits, policy=self.policy, traces=True)
        self.device = FakeDevice(limits=self.limits, script=self.script, yields=self.yields)

    def admit(self, message: Admit, worker: int = 0, now_us: int = 0) -> None:
        self.workers[message.request] = TextId(worker)
        self.device.cache_roots[message.sampling.seed] = message.placement.cache_root(
            shares_prefixes=self.policy.shares_prefixes
        )
        effects = self.scheduler.handle(TextId(worker), message, now_us)
        (answer,) = effects.outgoing
        assert isinstance(answer.message, Queued | Refused)
        if isinstance(answer.message, Queued):
            for choice, known in enumerate(message.output_ids or (b"",) * message.choices):
                self.outputs[message.request, choice] = unpack_i32(known).tolist()
        self._receive(effects)

    def abort(self, request: int, now_us: int = 0) -> None:
        message = AbortRequest(request=RequestId(request), reason=AbortReason.CLIENT_GONE)
        self._receive(self.scheduler.handle(self.workers.get(request, TextId(0)), message, now_us))

    def expire(self, now_us: int) -> None:
        self._receive(self.scheduler.expire(now_us))

    def stop(self, request: int, choice: int = 0, output_tokens: int = 1) -> None:
        message = StopChoice(request=RequestId(request), choice=choice, output_tokens=output_tokens)
        self._receive(self.scheduler.handle(self.workers[request], message))

    def take_steps(self, worker: int = 0) -> None:
        """The text worker gives credit for everything that it was sent."""
        for step in self.untaken.pop(TextId(worker), [])[-1:]:
            assert self.scheduler.handle(TextId(worker), StepsTaken(step=step)) == Effects()
        self.sound()

    def launch(self, now_us: int = 0) -> ExecuteStep | None:
        next_step = self.scheduler.plan(now_us)
        self.sound()
        if isinstance(next_step, Idle):
            return None
        self.planned, planned = next_step, next_step.message
        assert sum(unpack_i32(planned.counts)) <= self.policy.max_step_tokens
        self.device.launch(planned)
        for slot in unpack_i32(planned.slots):
            opened = self.device.slots[SlotId(slot)].opened
            assert (opened.sampling.seed, opened.choice) not in self.ended, "a choice that ended is planned"
        self._same_tables()
        return planned

    @property
    def trace(self) -> StepTrace:
        """Of the step planned last."""
        assert self.planned is not None
        assert self.planned.trace is not None
        return self.planned.trace

    def finish(self) -> Effects:
        effects = self.scheduler.complete(self.device.finish())
        self.completed.append(effects)
        self._receive(effects)
        return effects

    def step(self) -> ExecuteStep | None:
        """Launches as many steps as may be in flight, then finishes the oldest; the first one launched, or None for Idle."""
        first = self.launch()
        launched = first
        while launched is not None:
            launched = self.launch()
        if self.device.launched:
            self.finish()
        return first

    def run(self, max_steps: int = 1_000) -> int:
        """Steps until nothing is open."""
        steps = 0
        while not self.scheduler.is_quiescent:
            steps += 1
            assert steps <= max_steps, "no progress"
            self.step()
        self.quiet()
        return steps

    def quiet(self) -> None:
        """Nothing is left anywhere (C7)."""
        figures = self.scheduler.statistics()
        assert self.scheduler.is_quiescent
        assert {size for _, size in figures.maps} == {0}
        assert (figures.running_choices, figures.waiting_choices, figures.pages_quarantined) == (0, 0, 0)
        assert figures.pages_free + figures.pages_cached == figures.pages_total
        assert (figures.pages_used, figures.pages_reserved) == (0, 0)
        assert self.device.slots == {}
        assert self.ended.keys() == self.outputs.keys()
        self.sound()

    def sound(self) -> None:
        assert self.scheduler.check() == ()

    def computed_tokens(self) -> int:
        """Tokens that all steps computed together."""
        return sum(sum(unpack_i32(step.counts)) for step in self.device.steps)

    def _same_tables(self) -> None:
        """The runtime's page tables are the scheduler's: none names a page that somebody else may be given (D1)."""
        running = self.scheduler._running
        expected = {one.slot: one.pages for one in (*running.prefilling, *running.decoding) if one.last_step}
        assert expected == {slot: state.pages for slot, state in self.device.slots.items()}

    def reason(self, request: int, choice: int = 0) -> FinishReason:
        return self.ended[request, choice][0]

    def _receive(self, effects: Effects) -> None:
        self.released.extend(effects.releases)
        for outgoing in effects.outgoing:
            match outgoing.message:
                case Queued(request=request):
                    self.queued.append(request)
                case Refused():
                    self.refused.append(outgoing.message)
                case TokensEmitted():
                    self._receive_tokens(outgoing.worker, outgoing.message)
                case RequestsFinished():
                    self._receive_finished(outgoing.worker, outgoing.message)
        self.sound()

    def _receive_tokens(self, worker: TextId, message: TokensEmitted) -> None:
        assert rows("q", message.requests) > 0
        columns = (unpack_i64(message.requests), unpack_i32(message.choices), unpack_i32(message.positions))
        more = (unpack_i32(message.token_ids), unpack_i32(message.cached_tokens))
        for request, choice, position, token, cached in zip(*columns, *more, strict=True):
            assert worker == self.workers[request]
            assert (request, choice) not in self.ended, "output after the end"
            assert position == len(self.outputs[request, choice])
            if position == 0:
                assert 0 <= cached
                self.cached[request, choice] = cached
            assert (cached == -1) == (position > 0)
            self.outputs[request, choice].append(token)
        self.untaken.setdefault(worker, []).append(message.step)
        if self.gives_credit:
            self.take_steps(worker)

    def _receive_finished(self, worker: TextId, message: RequestsFinished) -> None:
        assert rows("q", message.requests) > 0
        columns = (unpack_i64(message.requests), unpack_i32(message.choices), unpack_i8(message.reasons))
        for request, choice, reason, tokens in zip(*columns, unpack_i32(message.output_tokens), strict=True):
            assert worker == self.workers[request]
            assert (request, choice) not in self.ended, "ended twice"
            assert FinishReason(reason) is not FinishReason.RUNNING
            self.ended[request, choice] = (FinishReason(reason), tokens)
            if FinishReason(reason) is not FinishReason.STOP:
                assert tokens == len(self.outputs[request, choice])
