"""Which machine a measurement is of, and how busy it was."""

import os
import platform
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Machine:
    """One line in every report: figures mean nothing without it."""

    cpu: str
    cores: int
    """That this process may use."""
    load: float
    """Mean count of runnable tasks over the last minute; over about half of the cores, others disturb the measurement."""

    def __str__(self) -> str:
        busy = "" if self.load < self.cores / 2 else " (busy: repeat when it is quiet)"
        return f"{self.cpu}, {self.cores} cores, load {self.load:.1f}{busy}"


def this_machine() -> Machine:
    return Machine(cpu=_cpu_model(), cores=len(os.sched_getaffinity(0)), load=os.getloadavg()[0])


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
