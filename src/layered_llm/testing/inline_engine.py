"""A whole engine in one thread and in virtual time: the composition of an embedded engine, with its device as a task.

Must not know: what is tested with it.

Client, supervisor, text workers and scheduler are those of a real engine. Only the links are in memory, and the device, which
computes nothing, lets trio's time pass for its steps. Under a `trio.testing.MockClock` a run depends on nothing but its seed.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final, assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import StepId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import (
    ANSWERING_RANK,
    RuntimeReady,
    RuntimeToScheduler,
    RuntimeWarmingUp,
    StepFailed,
)
from layered_llm.domain.messages.supervision import Role
from layered_llm.runtime.device.device import MOST_SUBMITTED
from layered_llm.runtime.scripted.scripted_device import ScriptedDevice, ScriptedPace, Yields, one_token
from layered_llm.runtime.scripted.scripts import EchoScript, HashScript, Script
from layered_llm.scheduling.policy import SchedulingPolicy
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.engine_connection import EngineConnection
from layered_llm.service.model.checkpoint import Checkpoint
from layered_llm.service.processes.engine_process import leaves
from layered_llm.service.server.embedded import EmbeddedEngine, engine_addresses, until_ready
from layered_llm.service.settings.settings import Settings
from layered_llm.service.workers.preparations import TextHelpers
from layered_llm.service.workers.runtime_ranks import RuntimeFailed
from layered_llm.service.workers.scheduler import scheduling_policy, work_scheduler
from layered_llm.service.workers.template_renderer import RendersHere
from layered_llm.service.workers.text import serve_text
from layered_llm.testing.byte_text import byte_text_files
from layered_llm.testing.memory_links import HIGH_WATER_MARK, LinkObserver, MemoryLinks
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.core import Outcome, Work
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_SUPERVISOR, SCHEDULER_RUNTIME
from layered_llm.transport.peers import api_peer_name, peer_name
from layered_llm.transport.ports import MessageSink

DEATH_UNNOTICED_S: Final = 0.05
"""From the death of an API process until the supervisor learns of it."""
STALL_S: Final = 5.0
"""Longer than any scenario's output takes."""
_HALF: Final = 0.5
_FIRST_PID: Final = 1 << 30
"""Above all that a system gives out."""


@attrs.frozen(kw_only=True)
class InlineEngineOptions:
    """What an inline engine is made of."""

    text_files: TextFiles = attrs.field(factory=byte_text_files)
    """Tokenizer, template and ends of output; one token for each byte unless given."""
    seed: int = 0
    """Decides how long each message is on its way, and every id and seed that is drawn."""
    largest_delay_s: float = 0.002
    step_s: float = 0.010
    """Time of one step."""
    prepare_long_s: float = 0.005
    """Time that a long prompt takes to be tokenized."""
    script: Script = attrs.field(factory=EchoScript)
    pages: int = 64
    page_size_tokens: int = 4
    context_tokens: int = 128
    decode_tokens: int = 1
    yields: Yields = one_token
    """How many tokens a row yields, of `decode_tokens` at most."""
    vocabulary_size: int = 512
    max_running_requests: int = 8
    max_queued_requests: int = 64
    queue_timeout_s: float | None = None
    max_open_requests: int = 256
    chunked_prefill_size: int = 16
    text_workers: int = 1
    ranks: int = 1
    """Of the runtime; each is a device."""
    failing_step: tuple[int, StepId] | None = None
    """The rank that fails, and at which step; its process hangs after it has said so."""
    steps_in_flight: int = 2
    high_water_mark: int = HIGH_WATER_MARK
    """Messages that may wait for one API process."""

    def settings(self) -> Settings:
        return Settings(
            num_tokenizers=self.text_workers,
            max_running_requests=self.max_running_requests,
            max_queued_requests=self.max_queued_requests,
            queue_timeout_s=self.queue_timeout_s,
            chunked_prefill_size=self.chunked_prefill_size,
            max_open_requests=self.max_open_requests,
        )

    def policy(self) -> SchedulingPolicy:
        return attrs.evolve(scheduling_policy(self.settings()), max_steps_in_flight=self.steps_in_flight)

    def device(self) -> ScriptedDevice:
        """A device whose steps take no time by themselves: the task around it lets it pass."""
        limits = RuntimeLimits(
            pages=self.pages,
            page_size_tokens=self.page_size_tokens,
            slots=self.max_running_requests,
            context_tokens=self.context_tokens,
            vocabulary_size=self.vocabulary_size,
            decode_tokens=self.decode_tokens,
        )
        return ScriptedDevice(
            limits=limits,
            script=self.script,
            pace=ScriptedPace(step_us=0, token_us=0),
            wait=_takes_no_time,
            now_us=_takes_no_time_either,
            yields=self.yields,
        )


def hash_script(first_id: int, id_count: int) -> Script:
    """Output that depends on the whole history: a lost or repeated token, or a wrong page, changes all that follows."""
    return HashScript(first_id=first_id, id_count=id_count)


@attrs.define(eq=False, kw_only=True)
class InlineEngine:
    """An engine that runs, and what can be done to it."""

    client: EngineClient
    """The engine's own API process; the engine lives as long as it does."""
    links: MemoryLinks
    _settings: Settings
    _random: Random
    _exits: "_Exits"

    @contextlib.asynccontextmanager
    async def api_process(self) -> AsyncIterator["ApiProcess"]:
        """One more API process, ready; it leaves in good order unless it was killed."""
        process = ApiProcess(
            client=EngineClient.drawn(
                pid=self._exits.new_pid(), max_open_requests=self._settings.max_open_requests, randbelow=self._random.randrange
            ),
            links=self.links,
            exits=self._exits,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.run, self._settings.max_open_requests)
            stalls = trio.CancelScope()
            nursery.start_soon(_run_in, stalls, process.resume_after_stall)
            try:
                await until_ready(process.client)
                yield process
            finally:
                process.leave.set()
                stalls.cancel(reason="the process leaves")

    def draw_chance(self) -> bool:
        """True or false, as the run's seed decides."""
        return self._random.random() < _HALF


async def _run_in(scope: trio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()


@attrs.define(eq=False, kw_only=True)
class ApiProcess:
    """An API process beside the engine's own one: it can die."""

    client: EngineClient
    leave: trio.Event = attrs.field(init=False, factory=trio.Event)
    _links: MemoryLinks
    _exits: "_Exits"
    _scope: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    _stalled: trio.Event = attrs.field(init=False, factory=trio.Event)

    @property
    def name(self) -> str:
        """Its name on every link."""
        return api_peer_name(self.client.api)

    def die(self, *, loses_sent: bool) -> None:
        """As by SIGKILL: it says nothing more, and the supervisor learns of it a little later."""
        self._links.kill(self.name, loses_sent=loses_sent)
        self._scope.cancel(reason="killed")

    def stall(self) -> None:
        """It takes no messages for STALL_S."""
        self._links.stall(self.name)
        self._stalled.set()

    async def resume_after_stall(self) -> None:
        """To be run beside `run`."""
        await self._stalled.wait()
        await trio.sleep(STALL_S)
        self._links.resume(self.name)

    async def run(self, max_open_requests: int) -> None:
        """Lives until it leaves or dies."""
        address = engine_addresses(0).supervisor_for_apis
        with self._scope, self._links.connect(API_SUPERVISOR, address, self.name) as link:
            await EngineConnection(self.client, self._links, max_open_requests, link, self._exits.wait).run(self.leave)
        if self._scope.cancelled_caught:
            await trio.sleep(DEATH_UNNOTICED_S)
        self._exits.exited(self.client.pid)


@attrs.define(eq=False)
class _Exits:
    """Which API processes have ended; this program's own one has not."""

    _events: dict[int, trio.Event] = attrs.field(factory=dict)

    def new_pid(self) -> int:
        pid = _FIRST_PID + len(self._events)
        self._events[pid] = trio.Event()
        return pid

    def exited(self, pid: int) -> None:
        self._events[pid].set()

    async def wait(self, pid: int) -> None:
        await self._events.get(pid, trio.Event()).wait()


@contextlib.asynccontextmanager
async def open_inline_engine(options: InlineEngineOptions, observer: LinkObserver | None = None) -> AsyncIterator[InlineEngine]:
    """An inline engine that lives as long as the block, ready; `observer` sees every message between its parts."""
    random = Random(options.seed)  # noqa: S311 - a test that can be repeated, no secret
    links = MemoryLinks(lambda: random.uniform(0.0, options.largest_delay_s), observer, options.high_water_mark)
    settings, exits = options.settings(), _Exits()
    launcher = InlineLauncher(options, links)
    engine = EmbeddedEngine(settings, options.ranks, links, launcher, _no_checkpoint, random.randrange, exits.wait)
    async with engine.open() as client:
        yield InlineEngine(client=client, links=links, settings=settings, random=random, exits=exits)


@attrs.frozen
class InlineLauncher:
    """Every engine process as a task."""

    _options: InlineEngineOptions
    _links: MemoryLinks

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        """Runs until told to stop, or until the runtime has failed; a fault of ours passes through."""
        reason = f"{role} left"
        try:
            await self._work(role, index, engine_addresses(generation))
        except* RuntimeFailed as group:
            reason = "; ".join(str(error) for error in leaves(group))
        return reason

    async def _work(self, role: Role, index: int, addresses: LinkAddresses) -> None:
        options = self._options
        match role:
            case Role.TEXT:
                helpers = TextHelpers(prepare_long=self._prepare_long, renderer=RendersHere(options.text_files.template))
                await serve_text(self._links, addresses, index, options.text_files, helpers)
            case Role.SCHEDULER:
                workers, ranks = options.text_workers, options.ranks
                await work_scheduler(self._links, addresses, options.policy(), text_workers=workers, ranks=ranks)
            case Role.RUNTIME:
                await self._run_device(addresses.runtime, index)
            case Role.API | Role.SUPERVISOR:
                raise InvariantViolated(f"{role} is no engine process")
            case _:
                assert_never(role)

    def stopped(self) -> tuple[str, ...]:
        return ()

    async def _prepare_long(self, work: Work) -> Outcome:
        await trio.sleep(self._options.prepare_long_s)
        return work.run()

    async def _run_device(self, address: str, rank: int) -> None:
        """As `serve_device`: at most MOST_SUBMITTED steps are submitted, each takes its time alone."""
        device = self._options.device()
        submitted = trio.Semaphore(0)
        places = trio.Semaphore(MOST_SUBMITTED)
        with self._links.connect(SCHEDULER_RUNTIME, address, peer_name(Role.RUNTIME, rank)) as link:
            await link.send(RuntimeWarmingUp())
            await link.send(RuntimeReady(limits=device.limits, pid=0))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._collect, rank, device, link, submitted, places)
                while True:
                    for step in await link.receive():
                        await places.acquire()
                        device.submit(step)
                        submitted.release()

    async def _collect(
        self,
        rank: int,
        device: ScriptedDevice,
        link: MessageSink[RuntimeToScheduler],
        submitted: trio.Semaphore,
        places: trio.Semaphore,
    ) -> None:
        while True:
            await submitted.acquire()
            await trio.sleep(self._options.step_s)
            result = device.collect()
            if (rank, result.step) == self._options.failing_step:
                await link.send(StepFailed(step=result.step, message="it fails on purpose"))
                return
            if rank == ANSWERING_RANK:
                await link.send(result)
            places.release()


async def _no_checkpoint() -> Checkpoint:
    return Checkpoint(Path(), "inline")


def _takes_no_time(_seconds: float) -> None:
    return


def _takes_no_time_either() -> int:
    return 0
