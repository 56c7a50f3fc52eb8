"""Any order of messages, plans and results, against a model that knows only what each request asked for."""

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from layered_llm.domain.finish import FinishReason
from layered_llm.scheduling.policy import AdmissionOrder
from support.scheduling_device import FAILS
from support.scheduling_rig import ChoiceKey, Rig, admit, limits, policy

WORKERS = 2
END_ID = 5


def script(seed: int, choice: int, position: int) -> int:
    if seed % 5 == 4 and choice == 0 and position == seed % 3:
        return FAILS
    return (seed * 7919 + choice * 104_729 + position * 1_299_709) % 13


@attrs.define
class Model:
    """What is expected of one choice: all its tokens if nobody ends it earlier, and why it ends then."""

    tokens: list[int]
    reason: FinishReason
    stopped_at_tokens: int | None = None
    is_aborted: bool = False


def model_of(request: int, choice: int, max_tokens: int, min_tokens: int) -> Model:
    tokens: list[int] = []
    while len(tokens) < max_tokens:
        token = script(request, choice, len(tokens))
        if token == FAILS:
            return Model(tokens, FinishReason.ERROR)
        if token == END_ID and len(tokens) >= min_tokens:
            return Model([*tokens, token], FinishReason.STOP)
        tokens.append(END_ID + 1 if token == END_ID else token)
    return Model(tokens, FinishReason.LENGTH)


@st.composite
def rigs(draw: st.DrawFn) -> Rig:
    pages, page_size, slots = draw(st.integers(2, 10)), draw(st.sampled_from([1, 4, 16])), draw(st.integers(1, 4))
    return Rig(
        limits=limits(pages=pages, page_size=page_size, slots=slots),
        policy=policy(
            budget=draw(st.integers(1, 12)),
            running=draw(st.integers(1, 4)),
            queued=draw(st.integers(1, 4)),
            credit=draw(st.integers(1, 3)),
            in_flight=draw(st.integers(1, 2)),
            cache=draw(st.booleans()),
            order=draw(st.sampled_from(AdmissionOrder)),
            overtakes=draw(st.integers(0, 2)),
            streams=draw(st.sampled_from([None, 2])),
        ),
        script=script,
        gives_credit=False,
    )


@st.composite
def prompts(draw: st.DrawFn, request: int, context: int) -> list[int]:
    """The beginning of one of two long texts, then something of the request's own, or nothing."""
    length = draw(st.integers(1, context))
    shared = draw(st.integers(0, length))
    text = 1_000 * draw(st.integers(1, 2))
    return [*range(text, text + shared), *range(10_000 * request, 10_000 * request + length - shared)]


class SchedulerMachine(RuleBasedStateMachine):
    """The rig checks the protocol, the device pages and slots, `check()` the rest, after every rule."""

    @initialize(rig=rigs())
    def start(self, rig: Rig) -> None:
        self.rig = rig
        self.models: dict[ChoiceKey, Model] = {}
        self.tenants: dict[int, str] = {}
        self.requests = 0
        self.aborts = self.stops = self.late_aborts = self.late_stops = 0

    @rule(data=st.data(), choices=st.integers(1, 3), min_tokens=st.integers(0, 3), worker=st.integers(0, WORKERS - 1))
    def admit(self, data: st.DataObject, choices: int, min_tokens: int, worker: int) -> None:
        self.requests += 1
        request, context = self.requests, self.rig.limits.context_tokens
        prompt = data.draw(prompts(request, context))
        tokens = data.draw(st.integers(1, 12))
        tenant, bounds = data.draw(st.sampled_from(["", "a", "b"])), self.rig.policy
        has_room = self.rig.scheduler.statistics().waiting_requests < bounds.max_queued_requests
        may_open = bounds.max_streams_per_tenant is None or self.streams(tenant) < bounds.max_streams_per_tenant
        message = admit(
            request,
            prompt_ids=prompt,
            tokens=tokens,
            choices=choices,
            end_ids=(END_ID,),
            min_tokens=min_tokens,
            salt=data.draw(st.sampled_from([None, None, "x"])),
            tenant=tenant,
            priority=data.draw(st.integers(-1, 1)),
        )
        self.rig.admit(message, worker)
        is_taken = len(prompt) + tokens - 1 <= context and may_open and has_room
        assert is_taken == (request in self.rig.queued)
        if is_taken:
            self.tenants[request] = tenant
            self.models.update({(request, one): model_of(request, one, tokens, min_tokens) for one in range(choices)})

    def streams(self, tenant: str) -> int:
        still_open = {request for request, choice in self.models.keys() - self.rig.ended.keys()}
        return sum(self.tenants[request] == tenant for request in still_open)

    @rule()
    def flush(self) -> None:
        self.rig.scheduler.flush_cache()
        self.rig.sound()
        assert 0 == self.rig.scheduler.statistics().pages_cached

    @rule()
    def launch(self) -> None:
        step = self.rig.launch()
        has_credit = not any(self.rig.untaken.values())
        if step is None and has_credit and not self.rig.device.launched:
            assert self.rig.scheduler.is_quiescent, "work, credit, an idle device, and nothing is planned"

    @precondition(lambda self: self.rig.device.launched)
    @rule()
    def finish(self) -> None:
        self.rig.finish()

    @rule(count=st.integers(1, 8))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            self.rig.step()
            for worker in range(WORKERS):
                self.rig.take_steps(worker)

    @rule(worker=st.integers(0, WORKERS - 1))
    def take_steps(self, worker: int) -> None:
        self.rig.take_steps(worker)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request = data.draw(st.integers(1, self.requests + 1))
        still_open = [key for key in self.models if key[0] == request and key not in self.rig.ended]
        self.aborts += 1
        self.late_aborts += not still_open
        self.rig.abort(request)
        for key in still_open:
            assert (FinishReason.ABORT, len(self.rig.outputs[key])) == self.rig.ended[key]
            self.models[key].is_aborted = True

    @precondition(lambda self: any(self.rig.outputs.values()))
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key, tokens in self.rig.outputs.items() if tokens]))
        at = data.draw(st.integers(1, len(self.rig.outputs[key])))
        is_late = key in self.rig.ended
        self.stops += 1
        self.late_stops += is_late
        self.rig.stop(request=key[0], choice=key[1], output_tokens=at)
        if not is_late:
            self.models[key].stopped_at_tokens = at

    def teardown(self) -> None:
        self.rig.gives_credit = True
        for worker in range(WORKERS):
            self.rig.take_steps(worker)
        self.rig.run(max_steps=5_000)
        figures = self.rig.scheduler.statistics()
        assert (self.aborts - self.late_aborts, self.late_aborts) == (
            figures.counters.aborts_handled,
            figures.counters.aborts_late,
        )
        assert (self.stops - self.late_stops, self.late_stops) == (figures.counters.stops_handled, figures.counters.stops_late)
        assert self.models.keys() == self.rig.ended.keys()
        assert len(self.models) == sum(figures.counters.finished.values()) == figures.counters.choices_accepted
        for key, model in self.models.items():
            self.as_expected(key, model)

    def as_expected(self, key: ChoiceKey, model: Model) -> None:
        shown, ended = self.rig.outputs[key], self.rig.ended[key]
        if model.stopped_at_tokens is not None:
            assert (FinishReason.STOP, model.stopped_at_tokens) == ended
        elif model.is_aborted:
            assert (FinishReason.ABORT, len(shown)) == ended
        elif ended[0] is FinishReason.ERROR:
            assert FinishReason.ERROR is self.models[key[0], 0].reason
        else:
            assert (model.reason, len(model.tokens)) == ended
            assert model.tokens == shown
        assert model.tokens[: len(shown)] == shown


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)
