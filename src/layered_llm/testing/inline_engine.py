"""A whole engine in one thread and in virtual time: the composition of an embedded engine, with its device as a task.

Must not know: what is tested with it.

Client, supervisor, text workers and scheduler are those of a real engine. Only the links are in memory, and the device, which
computes nothing, lets trio's time pass for its steps. Under a `trio.testing.MockClock` a run depends on nothing but its seed.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import assert_never

import attrs
import trio

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.scheduler_runtime import RuntimeReady
from layered_llm.domain.messages.supervision import Role
from layered_llm.runtime.scripted import ScriptedDevice, ScriptedPace
from layered_llm.runtime.scripts import EchoScript, HashScript, Script
from layered_llm.service.checkpoint import Checkpoint
from layered_llm.service.embedded import EmbeddedEngine, engine_addresses
from layered_llm.service.engine_client import EngineClient
from layered_llm.service.scheduler import scheduling_policy, work_scheduler
from layered_llm.service.settings import Settings
from layered_llm.service.text import serve_text
from layered_llm.testing.memory_links import MemoryLinks
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.core import Preparation, Prepared


@attrs.frozen(kw_only=True)
class InlineEngineOptions:
    """What an inline engine is made of."""

    text_files: TextFiles
    seed: int = 0
    """Decides how long each message is on its way."""
    largest_delay_s: float = 0.002
    step_s: float = 0.010
    """Time of one step."""
    prepare_long_s: float = 0.005
    """Time that a long prompt takes to be tokenized."""
    script: Script = attrs.field(factory=EchoScript)
    pages: int = 64
    page_size_tokens: int = 4
    context_tokens: int = 128
    vocabulary_size: int = 512
    max_running_requests: int = 8
    max_queued_requests: int = 64
    chunked_prefill_size: int = 16
    text_workers: int = 1

    def settings(self) -> Settings:
        return Settings(
            num_tokenizers=self.text_workers,
            max_running_requests=self.max_running_requests,
            max_queued_requests=self.max_queued_requests,
            chunked_prefill_size=self.chunked_prefill_size,
            max_open_requests=256,
        )

    def device(self) -> ScriptedDevice:
        """A device whose steps take no time by themselves: the task around it lets it pass."""
        limits = RuntimeLimits(
            pages=self.pages,
            page_size_tokens=self.page_size_tokens,
            slots=self.max_running_requests,
            context_tokens=self.context_tokens,
            vocabulary_size=self.vocabulary_size,
        )
        return ScriptedDevice(
            limits=limits,
            script=self.script,
            pace=ScriptedPace(step_us=0, token_us=0),
            wait=_takes_no_time,
            now_us=_takes_no_time_either,
        )


def hash_script(first_id: int, id_count: int) -> Script:
    """Output that depends on the whole history: a lost or repeated token, or a wrong page, changes all that follows."""
    return HashScript(first_id=first_id, id_count=id_count)


@contextlib.asynccontextmanager
async def open_inline_engine(options: InlineEngineOptions) -> AsyncIterator[EngineClient]:
    """The client of an inline engine that lives as long as the block."""
    delays = Random(options.seed)  # noqa: S311 - a test that can be repeated, no secret
    links = MemoryLinks(lambda: delays.uniform(0.0, options.largest_delay_s))
    engine = EmbeddedEngine(options.settings(), links, InlineLauncher(options, links), _no_checkpoint)
    async with engine.open() as client:
        yield client


@attrs.frozen
class InlineLauncher:
    """Every engine process as a task."""

    _options: InlineEngineOptions
    _links: MemoryLinks

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        """Runs until told to stop; a fault of ours passes through."""
        addresses = engine_addresses(generation)
        match role:
            case Role.TEXT:
                await serve_text(self._links, addresses, index, self._options.text_files, self._prepare_long)
            case Role.SCHEDULER:
                await work_scheduler(self._links, addresses, scheduling_policy(self._options.settings()))
            case Role.RUNTIME:
                await self._run_device(addresses.runtime(0))
            case Role.API | Role.SUPERVISOR:
                raise InvariantViolated(f"{role} is no engine process")
            case _:
                assert_never(role)
        return f"{role} left"

    async def _prepare_long(self, preparation: Preparation) -> Prepared | Rejected:
        await trio.sleep(self._options.prepare_long_s)
        return preparation.run()

    async def _run_device(self, address: str) -> None:
        device = self._options.device()
        with self._links.connect_runtime_to_scheduler(address) as link:
            await link.send(RuntimeReady(limits=device.limits, pid=0))
            while True:
                for step in await link.receive():
                    await trio.sleep(self._options.step_s)
                    await link.send(device.execute(step))


async def _no_checkpoint() -> Checkpoint:
    return Checkpoint(Path(), "inline")


def _takes_no_time(_seconds: float) -> None:
    return


def _takes_no_time_either() -> int:
    return 0
