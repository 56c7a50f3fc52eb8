import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from layered_llm.domain.ids import ApiId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.supervision import (
    ApiGoodbye,
    ApiHello,
    ApiToSupervisor,
    EnginePhase,
    EngineStatus,
    EngineToSupervisor,
    ProcessReady,
    Role,
    SupervisorToApi,
)
from layered_llm.service.model.checkpoint import Checkpoint
from layered_llm.service.processes.engine_process import engine_processes
from layered_llm.service.supervisor.supervision import Supervision
from layered_llm.service.supervisor.supervisor_loop import STOP_S, Supervisor
from layered_llm.testing.memory_links import MemoryDealerLink, MemoryLinks
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_SUPERVISOR, ENGINE_SUPERVISOR
from layered_llm.transport.peers import api_peer_name, peer_name
from support.service_ends import TEST_S

API = ApiId(5)
READY = {
    Role.TEXT: ProcessReady(role=Role.TEXT, index=0),
    Role.SCHEDULER: ProcessReady(role=Role.SCHEDULER, index=0, limits=EngineLimits(context_tokens=64, vocabulary_size=300)),
}


def addresses(generation: int) -> LinkAddresses:
    return LinkAddresses.in_process("engine", generation=generation)


@attrs.define
class DeafLauncher:
    """Stands for processes that stay until they are ended, but for those that are killed."""

    killed: dict[tuple[Role, int], trio.Event] = attrs.field(factory=dict)

    def stopped(self) -> tuple[str, ...]:
        return ()

    async def run(self, role: Role, index: int, *, generation: int, checkpoint: Checkpoint) -> str:
        await self.killed.setdefault((role, index), trio.Event()).wait()
        del self.killed[role, index]
        return f"{peer_name(role, index)} was killed"


async def stay_alive(_pid: int) -> None:
    await trio.sleep_forever()


async def found() -> Checkpoint:
    return Checkpoint(path=Path("model"), name="model")


@contextlib.asynccontextmanager
async def supervised(
    *words: EngineToSupervisor, launcher: DeafLauncher | None = None, ranks: int = 1
) -> AsyncIterator[MemoryDealerLink[ApiToSupervisor, SupervisorToApi]]:
    """A supervisor whose engine has said these words; its last API process says goodbye when the block is left."""
    links, name = MemoryLinks(), api_peer_name(API)
    with (
        trio.fail_after(TEST_S),
        links.bind(API_SUPERVISOR, "supervisor") as apis,
        links.connect(API_SUPERVISOR, "supervisor", name) as api,
    ):
        supervisor = Supervisor(
            processes=engine_processes(text_workers=1, ranks=ranks),
            addresses=addresses,
            links=links,
            apis=apis,
            supervision=Supervision(pid=1, ranks=ranks),
            launcher=launcher or DeafLauncher(),
            find_checkpoint=found,
            owner_gone=trio.sleep_forever,
            wait_exit=stay_alive,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await api.send(ApiHello(api=API, pid=1))
            await trio.testing.wait_all_tasks_blocked()
            for word in words:
                with links.connect(ENGINE_SUPERVISOR, addresses(1).supervisor, peer_name(word.role, 0)) as engine:
                    await engine.send(word)
            await trio.testing.wait_all_tasks_blocked()
            yield api
            await api.send(ApiGoodbye(api=API))


@pytest.mark.parametrize("words", [(), (READY[Role.TEXT],)], ids=["nobody-ready", "text-ready"])
async def test_an_engine_that_loads_is_ended_at_once(words: tuple[EngineToSupervisor, ...], autojump_clock: MockClock) -> None:
    async with supervised(*words):
        told_s = trio.current_time()

    assert told_s == trio.current_time()


async def test_an_engine_that_is_ready_has_time_to_leave_by_itself(autojump_clock: MockClock) -> None:
    async with supervised(*READY.values()):
        told_s = trio.current_time()

    assert told_s + STOP_S == trio.current_time()


async def restarting(api: MemoryDealerLink[ApiToSupervisor, SupervisorToApi]) -> tuple[str, tuple[str, ...]]:
    """Why the engine is started again, and what was stalled before."""
    stalled = set[str]()
    while True:
        for status in await api.receive():
            if isinstance(status, EngineStatus):
                stalled.update(status.stalled)
                if status.phase is EnginePhase.RESTARTING:
                    return status.detail, tuple(sorted(stalled))


async def test_processes_that_say_nothing_are_stalled_before_they_end_the_generation(autojump_clock: MockClock) -> None:
    async with supervised(*READY.values()) as api:
        assert ("text-0 hangs: it was silent for 30 s", ("scheduler-0", "text-0")) == await restarting(api)


@pytest.mark.parametrize("rank", [0, 1])
async def test_the_end_of_any_rank_ends_the_generation(rank: int, autojump_clock: MockClock) -> None:
    launcher = DeafLauncher()
    async with supervised(*READY.values(), launcher=launcher, ranks=2) as api:
        launcher.killed[Role.RUNTIME, rank].set()

        assert (f"runtime-{rank} was killed", ()) == await restarting(api)
