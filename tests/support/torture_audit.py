"""What must be true of a server whenever nobody asks for anything, and of its memory over time."""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Final

import attrs

from support.eventually import eventually
from support.server import Server

MOST_STEPS_TO_REST: Final = 700
"""Of the engine, when all clients have gone: many times what it takes to notice, far less than an answer that nobody aborts."""
_GAUGES: Final = ("requests_running", "requests_waiting", "kv_pages_used", "open_requests")


@attrs.frozen(kw_only=True)
class Books:
    """Counters of a server at rest."""

    accepted: float
    emitted: float
    handled: float
    late: float
    lost: float
    preempted: float
    evicted: float
    steps: float

    @property
    def is_balanced(self) -> bool:
        return self.emitted == self.handled + self.late + self.lost


def read_books(server: Server) -> Books:
    samples = server.metrics()
    return Books(
        accepted=total(samples, "requests_accepted_total"),
        emitted=total(samples, "aborts_emitted_total"),
        handled=total(samples, "aborts_handled_total"),
        late=total(samples, "aborts_late_total"),
        lost=total(samples, "aborts_lost_total"),
        preempted=total(samples, "preemptions_total"),
        evicted=total(samples, "kv_pages_evicted_total"),
        steps=total(samples, "steps_total"),
    )


def total(samples: dict[str, float], name: str) -> float:
    return sum(value for sample, value in samples.items() if sample.partition("{")[0] == f"layered_llm_{name}")


def check_rest(server: Server) -> Books:
    """The books, once the server is at rest; fails when it does not come to rest, or is not empty then."""
    seen: list[Books] = []

    def look() -> bool:
        # A request that is still in a socket's buffer is seen by nobody: rest is what two looks find the same.
        is_quiescent = server.state()["quiescent"]
        seen.append(read_books(server))
        return is_quiescent and seen[-2:-1] == seen[-1:]

    eventually(look)
    assert seen[-1].is_balanced, "a server that is quiescent has an abort on its way"
    assert seen[-1].steps - seen[0].steps < MOST_STEPS_TO_REST, "somebody's request went on when all had gone"
    samples = server.metrics()
    assert dict.fromkeys(_GAUGES, 0) == {name: total(samples, name) for name in _GAUGES}
    assert [] == server.state()["violations"]
    return seen[-1]


@attrs.define
class Memory:
    """Resident memory of each process of a server, looked at again and again."""

    kib: dict[str, list[int]] = attrs.field(init=False, factory=lambda: defaultdict(list))

    def look(self, server: Server) -> None:
        for process in server.processes():
            role = "api" if process.pid == server.pid else process.role
            resident_kib = _resident_kib(process.pid)
            if resident_kib is not None:
                self.kib[f"{role} {process.pid}"].append(resident_kib)

    def growth(self, process: str) -> float:
        """How much of itself the process gained over the second half, by the line that fits best."""
        half = self.kib[process][len(self.kib[process]) // 2 :]
        if len(half) < 2:
            return 0.0
        line = statistics.linear_regression(range(len(half)), half)
        return line.slope * (len(half) - 1) / statistics.mean(half)


def _resident_kib(pid: int) -> int | None:
    """None of a process that has ended since it was listed: its entry is gone, or has no memory any more."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), None)
