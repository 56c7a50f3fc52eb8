"""How much of the project one request goes through: the functions and files that a streamed chat and an abort enter."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import attrs
import trio
from benchmarks.beside import THIS
from trio.testing import wait_all_tasks_blocked

import layered_llm
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.testing.asgi_target import http_exchange
from layered_llm.testing.deterministic import run_deterministic
from layered_llm.testing.inline_engine import InlineEngineOptions, open_inline_engine
from layered_llm.testing.playing import TargetScenario

HELP = """\
Runs a whole engine in this process, in virtual time and with a device that computes nothing, and asks its HTTP application for
a streamed chat, as a server would. Python's profiler counts each function of the package that is entered. A first chat, which
is not counted, makes what is made once. The counts depend on nothing but the code: they are the same on every machine.

Read it so:
  chat        one streamed chat of 4 tokens, from the body to the last byte of the response
  abort       a client that leaves while its request decodes: from its disconnect to the acknowledgement of the step that frees
              its pages, with the steps that run meanwhile
  functions   different functions of the package that are entered, by its parts; http is transport.http
  files       those that they are in
  calls       how often they are entered; a generator counts each time that it goes on
A real server adds its sockets, its codec and its kernels: some 15 files.
"""
CHAT_TOKENS: Final = 4
LONG_TOKENS: Final = 100
PACKAGE: Final = Path(layered_llm.__file__).parent
HTTP: Final = "transport/http/"


@attrs.define
class Calls:
    """What was entered while it was counted."""

    counts: Counter[tuple[str, str]] = attrs.Factory(Counter)
    """By file, within the package, and function."""

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts what this thread enters during the block; of the package, but for its test harness."""
        sys.setprofile(self._enter)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _enter(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            file = code.co_filename.removeprefix(f"{PACKAGE}/")
            if not file.startswith("testing/"):
                self.counts[file, code.co_qualname] += 1

    def parts(self) -> list[str]:
        return sorted({part_of(file) for file, _ in self.counts})

    def row(self, part: str | None) -> tuple[int, int, int]:
        """Functions, files and calls of a part, or of all."""
        counts = {key: count for key, count in self.counts.items() if part is None or part == part_of(key[0])}
        return len(counts), len({file for file, _ in counts}), sum(counts.values())


def part_of(file: str) -> str:
    return "http" if file.startswith(HTTP) else file.partition("/")[0].removesuffix(".py")


@attrs.define
class Steps:
    """Implements `LinkObserver`: which steps have been acknowledged."""

    completed: trio.Event = attrs.Factory(trio.Event)
    """The first that sampled a token."""
    retired: trio.Event = attrs.Factory(trio.Event)
    """The first that frees what a request held."""
    _retiring: int | None = None

    def sent(self, message: object) -> None:
        if isinstance(message, ExecuteStep) and message.retired and self._retiring is None:
            self._retiring = message.step

    def taken(self, message: object) -> None:
        if isinstance(message, StepCompleted):
            if message.token_ids:
                self.completed.set()
            if message.step == self._retiring:
                self.retired.set()


@attrs.define
class Watch:
    """Implements `LinkObserver` by what watches at present."""

    steps: Steps = attrs.Factory(Steps)

    def sent(self, message: object) -> None:
        self.steps.sent(message)

    def taken(self, message: object) -> None:
        self.steps.taken(message)


async def measure() -> tuple[Calls, Calls]:
    """A chat and an abort."""
    watch = Watch()
    chat, abort = Calls(), Calls()
    async with open_inline_engine(InlineEngineOptions(), watch) as engine:
        whole, long = streamed_chat(CHAT_TOKENS), streamed_chat(LONG_TOKENS)
        await whole(engine.client, trio.Event())
        with chat.counted():
            await whole(engine.client, trio.Event())
        watch.steps, disconnect = Steps(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(long, engine.client, disconnect)
            await watch.steps.completed.wait()
            await wait_all_tasks_blocked()
            with abort.counted():
                disconnect.set()
                await watch.steps.retired.wait()
                await wait_all_tasks_blocked()
    return chat, abort


def streamed_chat(max_tokens: int) -> TargetScenario:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "inline", "messages": messages, "stream": True, "max_tokens": max_tokens}
    return http_exchange("/v1/chat/completions", body)


def main() -> None:
    arguments = parse()
    counted = dict(zip(("chat", "abort"), run_deterministic(measure, seed=0), strict=True))
    for name, calls in counted.items():
        print(table(name, calls))
    if arguments.functions:
        for name, calls in counted.items():
            print("\n".join(f"{name}  {count:>4}  {file}: {function}" for (file, function), count in calls.counts.items()))
    if arguments.json is not None:
        report = {name: {part or "all": calls.row(part) for part in (*calls.parts(), None)} for name, calls in counted.items()}
        arguments.json.write_text(json.dumps({"commit": THIS.name, **report}, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spine", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--functions", action="store_true", help="name every function that is entered, in order, with its calls"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE")
    return parser.parse_args()


def table(name: str, calls: Calls) -> str:
    rows = [f"{name:<12}{'functions':>10}{'files':>8}{'calls':>8}"]
    for part in (*calls.parts(), None):
        functions, files, count = calls.row(part)
        rows.append(f"{part or 'all':<12}{functions:>10}{files:>8}{count:>8}")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
