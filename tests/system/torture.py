"""Clients that leave a real server at random moments in every way there is, ten thousand times: `make torture`."""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import attrs
import trio
from tqdm import tqdm

from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import TIMEOUT_S
from support.server import Server, python_server, scripted
from support.torture_audit import Books, Memory, check_rest
from support.torture_clients import Answer, complete, leave_h1, leave_h2
from support.torture_visits import COMPLETIONS, Asked, Visit, draw_asked, draw_visit

BATCH: Final = 100
AT_ONCE: Final = 40
STAYING_SHARE: Final = 0.1
"""Requests that are waited for, beside each disconnect."""
KINDS_OF_STAYING: Final = 12
PAGES: Final = 125
PAGE_TOKENS: Final = 16
MEMORY_JUDGED_FROM: Final = 2000
MOST_GROWTH: Final = 0.01
GREEDY: Final = Asked(
    path=COMPLETIONS, body={"prompt": "what is right", "max_tokens": 12, "n": 1, "temperature": 0, "stream": False}
)
CROWDED: Final = Asked(
    path=COMPLETIONS, body={"prompt": "all at once", "max_tokens": 700, "n": 3, "temperature": 0, "stream": False}
)
"""Its choices alone are more than the pool holds, so that some are preempted whatever the machine's pace."""
CROWDED_EVERY: Final = 10
"""Batches."""

HELP = """\
Starts a server with two text workers, a scripted device and a pool of pages that is too small for its load, and lets clients
leave it: over HTTP/1.1 and HTTP/2, streaming or not, in the middle of their request or of the answer, with a FIN, a RST, a half
close, a reset stream, a GOAWAY, behind pipelined bytes, or after they stopped to read. Others beside them stay, and compare
their answers with those that they had alone. After each hundred the server must come to rest with nothing left: see
tests/support/torture_audit.py. Ends at the first thing that is wrong. The seed decides what clients do, not how the machine
schedules them: a failure may need several runs to be seen again.
"""


@attrs.define
class Torture:
    """One run against one server."""

    server: Server
    random: Random
    answers: dict[int, Answer] = attrs.field(init=False, factory=dict)
    staying: tuple[Asked, ...] = attrs.field(init=False)
    kinds: Counter[str] = attrs.field(init=False, factory=Counter)
    stayed: int = attrs.field(init=False, default=0)
    batches: int = attrs.field(init=False, default=0)
    memory: Memory = attrs.field(init=False, factory=Memory)

    def __attrs_post_init__(self) -> None:
        drawn = (draw_asked(self.random, fewest_tokens=1, most_tokens=100) for _ in range(KINDS_OF_STAYING))
        self.staying = (GREEDY, CROWDED, *drawn)

    async def learn(self) -> None:
        """What each staying request says alone."""
        for kind, asked in enumerate(self.staying):
            self.answers[kind] = await complete(self.server.port, asked)

    async def batch(self, disconnects: int) -> None:
        limit = trio.CapacityLimiter(AT_ONCE)
        async with trio.open_nursery() as nursery:
            if self.batches % CROWDED_EVERY == 0:
                nursery.start_soon(self._stay, limit, self.staying.index(CROWDED))
            self.batches += 1
            for _ in range(disconnects):
                visit = draw_visit(self.random)
                self.kinds[f"{visit.leaving.value}, {visit.stage.value}"] += 1
                nursery.start_soon(self._leave, limit, visit, self._draw_kind())
                if self.random.random() < STAYING_SHARE:
                    nursery.start_soon(self._stay, limit, self._draw_kind())

    async def check(self) -> Books:
        """After a batch."""
        books = await trio.to_thread.run_sync(check_rest, self.server)
        assert self.answers[0] == await complete(self.server.port, GREEDY)
        self.memory.look(self.server)
        return books

    def _draw_kind(self) -> int:
        """Any but the crowded one, which takes seconds."""
        return self.random.choice([kind for kind, asked in enumerate(self.staying) if asked is not CROWDED])

    async def _leave(self, limit: trio.CapacityLimiter, visit: Visit, beside: int) -> None:
        async with limit:
            with trio.fail_after(TIMEOUT_S):
                if not visit.leaving.is_h2:
                    await leave_h1(self.server.port, visit)
                    return
                answer = await leave_h2(self.server.port, visit, self.staying[beside])
        if answer is not None:
            self._compare(beside, answer)

    async def _stay(self, limit: trio.CapacityLimiter, kind: int) -> None:
        async with limit:
            answer = await complete(self.server.port, self.staying[kind])
        self._compare(kind, answer)

    def _compare(self, kind: int, answer: Answer) -> None:
        assert self.answers[kind] == answer, f"{self.staying[kind]} is answered otherwise than alone"
        self.stayed += 1


@contextmanager
def tortured_server(directory: Path) -> Iterator[Server]:
    """With pages for one long answer, which many that begin have to share."""
    model = write_byte_checkpoint(directory, context_tokens=PAGES * PAGE_TOKENS)
    pool = {"num_pages": PAGES, "page_size": PAGE_TOKENS}
    narrow = {"max_running_requests": 64, "chunked_prefill_size": 128, "num_tokenizers": 2}
    with python_server(scripted(model, scripted_output="hash", scripted_step_ms=2, **pool, **narrow)) as server:
        yield server


async def run(torture: Torture, disconnects: int) -> Books:
    """All batches; the books at the end. Fails at the first thing that is wrong."""
    await torture.learn()
    books = await torture.check()
    with tqdm(total=disconnects, unit="disconnects", file=sys.stderr, mininterval=5) as progress:
        for start in range(0, disconnects, BATCH):
            count = min(BATCH, disconnects - start)
            await torture.batch(count)
            books = await torture.check()
            progress.update(count)
    assert "Traceback" not in torture.server.log, torture.server.log
    return books


def growing(memory: Memory) -> list[str]:
    """Processes that grew by more than they may."""
    return [process for process in memory.kib if memory.growth(process) > MOST_GROWTH]


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    with tempfile.TemporaryDirectory() as directory, tortured_server(Path(directory)) as server:
        torture = Torture(server, Random(arguments.seed))
        started_s = time.perf_counter()
        books = trio.run(run, torture, arguments.disconnects)
        rate = arguments.disconnects / (time.perf_counter() - started_s)
    print(f"{table(torture, books)}\n\n{rate:.1f} disconnects/s")
    grown = growing(torture.memory) if arguments.disconnects >= MEMORY_JUDGED_FROM else []
    if grown:
        print(f"more than {MOST_GROWTH:.0%} of growth over the second half: {', '.join(grown)}")
    return 1 if grown else 0


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make torture", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--disconnects", type=int, default=10_000, metavar="N", help="how many clients leave (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what they do (default: 0)")
    return parser.parse_args(words)


def table(torture: Torture, books: Books) -> str:
    lines = [f"{'how they left':<32}{'clients':>10}"]
    lines += [f"{kind:<32}{count:>10}" for kind, count in sorted(torture.kinds.items())]
    lines += ["", f"{'answers compared':<32}{torture.stayed:>10}"]
    lines += [f"{name:<32}{value:>10.0f}" for name, value in attrs.asdict(books).items()]
    lines += ["", f"{'process':<24}{'first, MiB':>12}{'middle, MiB':>13}{'last, MiB':>11}{'growth, 2nd half':>18}"]
    for process, kib in torture.memory.kib.items():
        first, middle, last = (kib[place] / 1024 for place in (0, len(kib) // 2, -1))
        lines.append(f"{process:<24}{first:>12.1f}{middle:>13.1f}{last:>11.1f}{torture.memory.growth(process):>17.2%}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
