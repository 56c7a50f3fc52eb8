"""Runs a scenario again and again, each time with one fault at another of its steps, and checks the contract after each.

Must not know: what a scenario does.

One run has a seed: it decides the order of tasks and how long messages are on their way. A first run without a fault counts the
steps of the target; then each of them gets each kind of fault. After the fault the engine must come to rest by itself, with
nothing left of the request, and must answer a probe with the text that it always gives.
"""

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.api_text import Accepted, Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EngineState, EngineStatus
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import ChoiceDelta
from layered_llm.service.engine_client import EngineClient
from layered_llm.service.request_stream import RequestStream
from layered_llm.testing.contract import broken_promises
from layered_llm.testing.deterministic import run_deterministic
from layered_llm.testing.injection import Fault, Injected, StepInjector, Watched
from layered_llm.testing.inline_engine import InlineEngineOptions, open_inline_engine
from layered_llm.transport.http.debug_state import is_quiescent
from layered_llm.transport.http.engine_port import Engine, EngineStream

REST_S: Final = 60.0
"""Virtual time in which an engine must come to rest after a fault."""
_LOOK_EVERY_S: Final = 0.05

Scenario = Callable[[Engine], Awaitable[None]]
"""Works with the engine as the HTTP layer and the library see it."""


TargetScenario = Callable[[Engine, trio.Event], Awaitable[None]]
"""As a Scenario; the event is set when its client is gone, which only targets with a client look at."""

LIBRARY_FAULTS: Final = (Fault.CANCEL, Fault.DEADLINE, Fault.ERROR)
CLIENT_FAULTS: Final = (Fault.CANCEL, Fault.DISCONNECT)


@attrs.frozen(kw_only=True)
class Failure:
    """One run that broke the contract; `seed`, `fault` and `step` repeat it."""

    scenario: str
    seed: int
    fault: Fault | None
    step: int
    broken: tuple[str, ...]

    def __str__(self) -> str:
        what = self.fault.value if self.fault is not None else "no fault"
        return f"{self.scenario}, seed {self.seed}, {what} behind step {self.step}: {'; '.join(self.broken)}"


@attrs.frozen(kw_only=True)
class Coverage:
    """What was tried."""

    points: int
    """Steps of the target that got a fault, over all seeds and faults."""
    failures: tuple[Failure, ...]


@attrs.frozen(kw_only=True)
class Target:
    """A scenario under test."""

    name: str
    run: TargetScenario
    """The target: it gets the faults."""
    beside: tuple[Scenario, ...] = ()
    """Run at the same time, without faults; they must end by themselves."""
    options: InlineEngineOptions
    probe: Prompt
    """Answered after each run, greedily."""
    probe_tokens: int = 8


def cancel_everywhere(
    target: Target, *, seeds: Iterable[int], faults: Iterable[Fault] = LIBRARY_FAULTS, every: int = 1
) -> Coverage:
    """Every `every`-th step of the target gets each of the faults, for each seed."""
    points, failures, kinds = 0, [], tuple(faults)
    for seed in seeds:
        clean = _run(target, seed, StepInjector())
        if clean.broken:
            failures.append(Failure(scenario=target.name, seed=seed, fault=None, step=0, broken=clean.broken))
            continue
        for step in range(1 + seed % every, clean.steps + 1, every):
            for fault in kinds:
                run = _run(target, seed, StepInjector(fault, step), expected_probe=clean.probe)
                points += run.was_injected
                if run.broken:
                    failures.append(Failure(scenario=target.name, seed=seed, fault=fault, step=step, broken=run.broken))
    return Coverage(points=points, failures=tuple(failures))


@attrs.frozen(kw_only=True)
class _Run:
    steps: int
    was_injected: bool
    probe: tuple[int, ...]
    broken: tuple[str, ...]


def _run(target: Target, seed: int, injector: StepInjector, expected_probe: tuple[int, ...] | None = None) -> _Run:
    return run_deterministic(partial(_play, target, seed, injector, expected_probe), seed=seed, instruments=(injector,))


async def _play(target: Target, seed: int, injector: StepInjector, expected_probe: tuple[int, ...] | None) -> _Run:
    watched = _WatchedEngine()
    async with open_inline_engine(attrs.evolve(target.options, seed=seed)) as client:
        watched.client = client
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_target, target, watched, injector)
            for scenario in target.beside:
                nursery.start_soon(scenario, client)
        state = await _rest(client)
        broken = [*watched.broken, *broken_promises(state)]
        probe = await _probe(client, target) if not broken else ()
        if not broken:
            broken.extend(broken_promises(await _rest(client)))
        if expected_probe is not None and not broken and probe != expected_probe:
            broken.append(f"the probe's answer is {probe} instead of {expected_probe}")
    return _Run(steps=injector.steps, was_injected=injector.was_injected, probe=probe, broken=tuple(broken))


@attrs.define(eq=False)
class _WatchedEngine:
    """The engine as the target sees it; knows what the target opened."""

    client: EngineClient | None = None
    broken: tuple[str, ...] = ()
    _opened: list[RequestStream] = attrs.field(factory=list)

    def status(self) -> EngineStatus:
        return self._engine.status()

    def open(self, owner: contextlib.ExitStack, prompt: Prompt, params: SamplingParams) -> EngineStream | Rejected:
        stream = self._engine.open(owner, prompt, params)
        if isinstance(stream, RequestStream):
            self._opened.append(stream)
        return stream

    async def state(self) -> EngineState:
        return await self._engine.state()

    def check_all_left(self) -> None:
        """To be called when the target's scope is left, before anything else can run."""
        still_open = [stream.request for stream in self._opened if not stream.is_over]
        if still_open:
            self.broken = (f"C2: requests {still_open} are open although the scope that opened them is left",)

    @property
    def _engine(self) -> EngineClient:
        if self.client is None:
            raise InvariantViolated("the engine is opened before the target runs")
        return self.client


async def _run_target(target: Target, engine: _WatchedEngine, injector: StepInjector) -> None:
    try:
        with trio.CancelScope() as scope:
            watched = Watched(task=trio.lowlevel.current_task(), scope=scope, disconnect=trio.Event())
            injector.watch(watched)
            try:
                await target.run(engine, watched.disconnect)
            finally:
                injector.unwatch()
    except* Injected:
        pass
    engine.check_all_left()


async def _rest(client: EngineClient) -> EngineState:
    """The state as soon as it is quiescent, or when the time for that is over."""
    over_s = trio.current_time() + REST_S
    while True:
        state = await client.state()
        if is_quiescent(state) or trio.current_time() > over_s:
            return state
        await trio.sleep(_LOOK_EVERY_S)


async def _probe(client: EngineClient, target: Target) -> tuple[int, ...]:
    with contextlib.ExitStack() as owner:
        params = SamplingParams(max_tokens=target.probe_tokens, temperature=0.0, seed=0, ignore_eos=True)
        stream = client.open(owner, target.probe, params)
        if isinstance(stream, Rejected) or not isinstance(await stream.verdict(), Accepted):
            return ()
        tokens: list[int] = []
        while True:
            for event in await stream.receive():
                if isinstance(event, ChoiceDelta):
                    tokens.extend(event.token_ids)
                    if event.finish_reason is not FinishReason.RUNNING:
                        return tuple(tokens)
