"""Processor time of processes and of the whole machine, as Linux tells it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
IDLE_COLUMNS: Final = (3, 4)
"""Of /proc/stat: idle, and idle while it waits for a disk."""
GUEST_COLUMNS: Final = 8
"""Time of guests is in user time too."""


@attrs.frozen(kw_only=True)
class ProcessTime:
    """One process up to now, with those of its children that have ended and were waited for."""

    parent: int
    ticks: int


@attrs.frozen(kw_only=True)
class ProcessorTimes:
    """All processes at one moment."""

    busy_ticks: int
    """Of the machine: of all its cores, since it started."""
    processes: Mapping[int, ProcessTime]

    @classmethod
    def now(cls) -> "ProcessorTimes":
        columns = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = sum(columns[:GUEST_COLUMNS]) - sum(columns[column] for column in IDLE_COLUMNS)
        return cls(busy_ticks=busy, processes=dict(_processes()))

    def since(self, earlier: "ProcessorTimes", roots: Iterable[int], alone: Iterable[int] = ()) -> "Spent":
        """Between both moments. `roots` are processes whose descendants count as theirs, those of `alone` do not."""
        family = self.family(set(roots)) | set(alone)
        own = sum(self.ticks_of(pid) - earlier.ticks_of(pid) for pid in family)
        return Spent(own_s=own / TICKS_PER_S, others_s=max(0, self.busy_ticks - earlier.busy_ticks - own) / TICKS_PER_S)

    def ticks_of(self, pid: int) -> int:
        """None of a process that is not there."""
        return self.processes[pid].ticks if pid in self.processes else 0

    def family(self, roots: set[int]) -> set[int]:
        """`roots` and their descendants."""
        family = {pid for pid in roots if pid in self.processes}
        size = 0
        while len(family) > size:
            size = len(family)
            family |= {pid for pid, process in self.processes.items() if process.parent in family}
        return family


@attrs.frozen(kw_only=True)
class Spent:
    """Processor time between two moments, of all cores."""

    own_s: float
    others_s: float
    """Of everybody else on the machine: where this is not near nothing, they disturbed."""


def _processes() -> Iterable[tuple[int, ProcessTime]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended since the directory was listed
            fields = stat.rpartition(")")[2].split()
            yield int(entry.name), ProcessTime(parent=int(fields[1]), ticks=sum(int(one) for one in fields[11:15]))


def thread_seconds(pid: int) -> float:
    """Processor time of all threads that process `pid` has now, to the nanosecond."""
    times = (int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(times) / 1e9
