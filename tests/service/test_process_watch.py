import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from layered_llm.service.processes.process_watch import adopts_orphans, reap_adopted, wait_process_exit
from layered_llm.service.processes.processes import process_start_time

SLEEPER = "import sys; sys.stdin.read()"
WATCHED = """
import sys
from layered_llm.service.processes.processes import exit_at_stdin_eof
exit_at_stdin_eof(7)
print("watching", flush=True)
{then}
"""
BUSY = "while True: pass"
MIDDLE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(60)
"""


async def start(*words: str) -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-c", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )


async def first_line(process: trio.Process) -> bytes:
    assert process.stdout is not None
    return bytes(await process.stdout.receive_some())


async def test_wait_returns_when_the_process_is_killed() -> None:
    process = await start(SLEEPER)
    start_time = process_start_time(process.pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: wait_process_exit(process.pid, start_time=start_time))
        await trio.testing.wait_all_tasks_blocked()
        process.kill()

    assert -signal.SIGKILL == await process.wait()


def test_wait_returns_for_a_process_that_is_dead_but_not_reaped() -> None:
    async def wait(pid: int) -> None:
        with trio.fail_after(5):
            await wait_process_exit(pid, start_time=process_start_time(pid))

    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        trio.run(wait, process.pid)


async def test_wait_returns_at_once_for_a_process_that_is_gone() -> None:
    process = await start("")
    await process.wait()

    with trio.fail_after(5), trio.testing.assert_checkpoints():
        await wait_process_exit(process.pid)


async def test_process_that_got_the_pid_later_is_not_waited_for() -> None:
    with trio.fail_after(5):
        await wait_process_exit(os.getpid(), start_time=process_start_time(os.getpid()) - 1)


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


async def test_cancelled_wait_leaves_no_descriptor_behind() -> None:
    descriptors = open_descriptors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_process_exit, os.getpid())
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert descriptors == open_descriptors()


async def test_start_time_survives_an_ugly_command_name() -> None:
    rename = "open('/proc/self/comm', 'w').write('a) S 1 (b'); print('renamed', flush=True); " + SLEEPER
    process = await start(rename)
    before = process_start_time(process.pid)
    await first_line(process)

    assert before == process_start_time(process.pid)
    process.kill()
    await process.wait()


def test_start_time_of_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()

    with pytest.raises(ProcessLookupError):
        process_start_time(process.pid)


async def test_process_exits_at_the_end_of_its_stdin_even_while_it_computes() -> None:
    process = await start(WATCHED.format(then=BUSY))
    await first_line(process)
    assert process.stdin is not None
    await process.stdin.send_all(b"is read and ignored")
    await process.stdin.aclose()

    with trio.fail_after(10):
        assert 7 == await process.wait()


async def test_process_without_a_stdin_exits() -> None:
    closed_stdin = "import os; os.close(0)\n" + WATCHED.format(then="import threading; threading.Event().wait()")
    process = await start(closed_stdin)

    with trio.fail_after(10):
        assert 7 == await process.wait()


async def test_orphan_dies_with_its_parent() -> None:
    parent = await start(MIDDLE, WATCHED.format(then=BUSY))
    child = int(await first_line(parent))
    parent.kill()

    with trio.fail_after(10):
        await wait_process_exit(child)
    await parent.wait()


async def test_the_exit_code_of_a_child_that_somebody_waits_for_is_not_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reap_adopted)
        for code in range(5):
            process = await trio.run_process([sys.executable, "-c", f"raise SystemExit({code})"], check=False)
            assert code == process.returncode
        nursery.cancel_scope.cancel()


def dead_children(count: int) -> list[int]:
    """Which can still be waited for."""
    children = [os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ) for _ in range(count)]
    for child in children:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return children


async def test_dead_children_that_nobody_waits_for_are_buried(autojump_clock: trio.testing.MockClock) -> None:
    children = dead_children(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reap_adopted)
        with trio.fail_after(60):
            while [pid for pid in children if Path(f"/proc/{pid}").exists()]:
                await trio.sleep(1)
        nursery.cancel_scope.cancel()


def test_an_ordinary_process_adopts_nobody() -> None:
    assert not adopts_orphans()
