"""One run: an engine, a target, what runs beside it, at most one fault, and everything that must hold during and after it.

Must not know: which runs are made, what a scenario does.
"""

import contextlib
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.api_text import Accepted, Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import is_quiescent
from layered_llm.domain.ports.engine import Engine, EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import ChoiceDelta
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.testing.deterministic import run_deterministic
from layered_llm.testing.injection import Fault, Injected, StepInjector, Watched
from layered_llm.testing.inline_engine import ApiProcess, InlineEngine, InlineEngineOptions, open_inline_engine
from layered_llm.testing.observed_engine import (
    Asked,
    ObservedEngine,
    Tokens,
    broken_promises,
    emissions_owed,
    emissions_waiting,
)
from layered_llm.testing.wire_audit import WireAudit

REST_S: Final = 60.0
"""Virtual time in which an engine must come to rest after a fault."""
RUN_S: Final = 3600.0
"""Virtual time after which a run hangs."""
_FIRST_LOOK_S: Final = 0.05
_SEEDS_OF_A_SCENARIO: Final = 1000

Scenario = Callable[[Engine], Awaitable[None]]
"""Works with the engine as the HTTP layer and the library see it."""

TargetScenario = Callable[[Engine, trio.Event], Awaitable[None]]
"""As a Scenario; the event is set when its client is gone, which only targets with a client look at."""

Outputs = Mapping[Asked, Tokens]
_NO_OUTPUTS: Final[Outputs] = MappingProxyType({})


class PromiseBroken(Exception):  # noqa: N818 - states what happened
    """Raised by a scenario that sees something that must not be; one sentence says what."""


@attrs.frozen(kw_only=True)
class Target:
    """A scenario under test."""

    name: str
    run: TargetScenario
    """The target: it gets the faults."""
    beside: tuple[Scenario, ...] = ()
    """Run at the same time, without faults: they must end by themselves, with the output that they have alone."""
    options: InlineEngineOptions = attrs.field(factory=InlineEngineOptions)
    faults: tuple[Fault, ...] = (Fault.CANCEL, Fault.DEADLINE, Fault.ERROR)
    in_own_process: bool = False
    """The target runs in an API process of its own, which can die."""
    probe: Prompt = attrs.field(factory=lambda: Prompt.of_text("are you well?"))
    """Answered after each run, greedily."""
    probe_tokens: int = 4


@attrs.frozen(kw_only=True)
class Expected:
    """What a run must repeat of the runs without a fault."""

    target: Outputs = _NO_OUTPUTS
    beside: Outputs = _NO_OUTPUTS
    probe: tuple[int, ...] | None = None


@attrs.define(eq=False, kw_only=True)
class Play:
    """One run, with what was seen of it."""

    target: Target
    seed: int
    injector: StepInjector = attrs.field(factory=StepInjector)
    expected: Expected = attrs.field(factory=Expected)
    only_beside: int | None = None
    """Only this one of the scenarios beside the target, and no target."""
    broken: list[str] = attrs.field(init=False, factory=list)
    details: str = attrs.field(init=False, default="")
    """The traceback, if the run failed."""
    probe: tuple[int, ...] = attrs.field(init=False, default=())
    _audit: WireAudit = attrs.field(init=False, factory=lambda: WireAudit(trio.current_time))
    _engine_left: trio.Event = attrs.field(init=False, factory=trio.Event)
    _targets: list[ObservedEngine] = attrs.field(init=False, factory=list)
    _besides: list[ObservedEngine] = attrs.field(init=False, factory=list)

    def play(self) -> None:
        """Runs it; an exception is a finding like any other."""
        try:
            run_deterministic(self._run, seed=self.seed, instruments=(self.injector,))
        except Exception as error:  # noqa: BLE001 - whatever ends a run is told to whoever asked for it
            self.broken.extend(f"{type(leaf).__name__}: {leaf}" for leaf in _leaves(error))
            self.details = "".join(traceback.format_exception(error))
        self.broken.extend(self._audit.broken)
        self.broken.extend(sentence for engine in self._engines for sentence in engine.broken)
        if not self.broken:
            self.broken.extend(self._wrong_outputs())

    @property
    def outputs(self) -> Outputs:
        """What the target was given."""
        return _outputs(self._targets)

    @property
    def outputs_beside(self) -> Outputs:
        """What the scenarios beside it were given."""
        return _outputs(self._besides)

    @property
    def _engines(self) -> tuple[ObservedEngine, ...]:
        return (*self._targets, *self._besides)

    async def _run(self) -> None:
        with trio.fail_after(RUN_S):
            async with trio.open_nursery() as nursery:
                engine: InlineEngine = await nursery.start(self._keep_engine)
                await self._play_at(engine)
                self._engine_left.set()
        self._audit.check_ended(request for observed in self._engines for request in observed.requests_read)

    async def _keep_engine(self, *, task_status: trio.TaskStatus[InlineEngine]) -> None:
        async with open_inline_engine(attrs.evolve(self.target.options, seed=self.seed), self._audit) as engine:
            task_status.started(engine)
            await self._engine_left.wait()

    async def _play_at(self, engine: InlineEngine) -> None:
        async with contextlib.AsyncExitStack() as stack:
            process = await stack.enter_async_context(engine.api_process()) if self.target.in_own_process else None
            await self._act(engine, process)
            if not self._engine_left.is_set():
                await self._look_back(engine)

    async def _act(self, engine: InlineEngine, process: ApiProcess | None) -> None:
        async with trio.open_nursery() as nursery:
            for index, scenario in enumerate(self.target.beside):
                if self.only_beside in (None, index):
                    observed = ObservedEngine(engine.client, _SEEDS_OF_A_SCENARIO * (index + 1))
                    self._besides.append(observed)
                    nursery.start_soon(self._run_beside, scenario, observed)
            if self.only_beside is None:
                self._targets.append(ObservedEngine(process.client if process is not None else engine.client, 0))
                nursery.start_soon(self._run_target, engine, process)

    async def _run_beside(self, scenario: Scenario, observed: ObservedEngine) -> None:
        with self._expecting(EngineLost if self.injector.fault is Fault.SHUTDOWN else None):
            await scenario(observed)

    async def _run_target(self, engine: InlineEngine, process: ApiProcess | None) -> None:
        (observed,) = self._targets
        disconnect = trio.Event()
        outside: dict[Fault, Callable[[], object]] = {Fault.DISCONNECT: disconnect.set, Fault.SHUTDOWN: self._engine_left.set}
        if process is not None:
            outside[Fault.DEATH] = lambda: process.die(loses_sent=engine.draw_chance())
            outside[Fault.STALL] = process.stall
        with self._expecting(_EXPECTED_ERRORS.get(self.injector.fault)), trio.CancelScope() as scope:
            self.injector.watch(Watched(task=trio.lowlevel.current_task(), scope=scope, outside=outside))
            try:
                await self.target.run(observed, disconnect)
            finally:
                self.injector.unwatch()
        self._check_left(observed)

    @contextlib.contextmanager
    def _expecting(self, error: type[Exception] | None) -> Iterator[None]:
        try:
            yield
        except* (Injected, EngineLost) as group:
            if error is None or not all(isinstance(leaf, error) for leaf in _leaves(group)):
                raise

    def _check_left(self, observed: ObservedEngine) -> None:
        """C2, before anything else can run."""
        observed.note_open()
        if self.injector.fault is Fault.DEATH and self.injector.was_injected:
            return
        engines = [one for one in self._engines if one.client is observed.client]
        emitted = self._audit.sent_by(observed.client.api) + emissions_waiting(engines)
        if emitted != emissions_owed(engines):
            self.broken.append(
                f"C2: {emitted} submits and aborts are on their way when the scope is left, {emissions_owed(engines)} are owed"
            )

    async def _look_back(self, engine: InlineEngine) -> None:
        """The engine comes to rest by itself, holds nothing, and answers as ever."""
        self.broken.extend(await _unrest(engine.client))
        if self.broken:
            return
        self.probe = await _probe(engine.client, self.target)
        self.broken.extend(await _unrest(engine.client))

    def _wrong_outputs(self) -> Iterator[str]:
        if self.expected.probe is not None and not self._engine_left_early and self.probe != self.expected.probe:
            yield f"the probe's answer is {self.probe} instead of {self.expected.probe}"
        for asked, tokens in self.outputs.items():
            whole = self.expected.target.get(asked, tokens)
            if any(some != all_[: len(some)] for some, all_ in zip(tokens, whole, strict=True)):
                yield f"the target was given {tokens}, no beginning of {whole}"
        for asked, tokens in self.outputs_beside.items():
            alone = self.expected.beside.get(asked, tokens)
            if not self._engine_left_early and tokens != alone:
                yield f"a request beside the target was given {tokens} instead of {alone}"

    @property
    def _engine_left_early(self) -> bool:
        return self.injector.fault is Fault.SHUTDOWN and self.injector.was_injected


_EXPECTED_ERRORS: Final[Mapping[Fault | None, type[Exception]]] = MappingProxyType(
    {Fault.ERROR: Injected, Fault.SHUTDOWN: EngineLost, Fault.DEATH: EngineLost}
)


async def _unrest(client: EngineClient) -> tuple[str, ...]:
    """What still keeps the engine from rest when the time for that is over: nothing, as soon as nothing does.

    Once the engine says that it is quiescent nothing may be missing: no abort comes later, and every counter adds up.
    """
    over_s, look_s = trio.current_time() + REST_S, _FIRST_LOOK_S
    while True:
        state = await client.state()
        broken = tuple(broken_promises(state))
        if not broken or is_quiescent(state) or trio.current_time() > over_s:
            return broken
        await trio.sleep(look_s)
        look_s *= 2


async def _probe(client: EngineClient, target: Target) -> tuple[int, ...]:
    with contextlib.ExitStack() as owner:
        params = SamplingParams(max_tokens=target.probe_tokens, temperature=0.0, seed=0, ignore_eos=True)
        stream = client.open(owner, target.probe, params)
        if isinstance(stream, Rejected) or not isinstance(await stream.verdict(), Accepted):
            raise InvariantViolated("an engine at rest refuses a probe")
        tokens: list[int] = []
        while True:
            for event in await stream.receive():
                if isinstance(event, ChoiceDelta):
                    tokens.extend(event.token_ids)
                    if event.finish_reason is not FinishReason.RUNNING:
                        return tuple(tokens)


def _outputs(engines: list[ObservedEngine]) -> Outputs:
    return {stream.asked: stream.tokens for engine in engines for stream in engine.streams if stream.tokens}


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
