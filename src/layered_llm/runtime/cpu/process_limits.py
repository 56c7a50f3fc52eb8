"""What the platform grants this process: how many processor cores it may use, and how much memory it can still use.

Must not know: models, what they are used for.

Control groups limit both, the process's own and every one above, and a limit of the address space (`ulimit -v`) the memory. The
page cache that a group can drop counts as free.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from layered_llm.runtime.cpu.control_groups import GroupPlace, groups_of, read_number, read_text

_KIB: Final = 1024
_ADDRESS_SPACE: Final = "Max address space"
"""A line of /proc/self/limits: then the soft limit in bytes or "unlimited", the hard one, the unit."""


@attrs.frozen(kw_only=True)
class _GroupFiles:
    """Names of a version's files."""

    limits: tuple[str, ...]
    used: str
    droppable: str
    """Of memory.stat."""


_VERSION_2: Final = _GroupFiles(limits=("memory.max", "memory.high"), used="memory.current", droppable="inactive_file")
"""Above memory.high a group is slowed down until it is of no use."""
_VERSION_1: Final = _GroupFiles(
    limits=("memory.limit_in_bytes",), used="memory.usage_in_bytes", droppable="total_inactive_file"
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the kernel would give without swapping, under all limits; None where nothing is known."""
    known = [*_machine_bytes(root), *_group_bytes(root), *_address_space_bytes(root)]
    return min(known, default=None)


def _machine_bytes(root: Path) -> Iterator[int]:
    kib = _fields(root / "proc/meminfo").get("MemAvailable:")
    if kib is not None:
        yield kib * _KIB


def _group_bytes(root: Path) -> Iterator[int]:
    for group in groups_of("memory", root):
        files = _VERSION_2 if group.is_version_2 else _VERSION_1
        used = read_number(group.path / files.used)
        for name in files.limits:
            limit = read_number(group.path / name)
            if limit is not None and used is not None:
                yield max(0, limit - used + _fields(group.path / "memory.stat").get(files.droppable, 0))


def _address_space_bytes(root: Path) -> Iterator[int]:
    mapped_kib = _fields(root / "proc/self/status").get("VmSize:")
    for line in read_text(root / "proc/self/limits").splitlines():
        words = line.removeprefix(_ADDRESS_SPACE).split()
        if line.startswith(_ADDRESS_SPACE) and words and words[0].isdecimal() and mapped_kib is not None:
            yield max(0, int(words[0]) - mapped_kib * _KIB)


def _fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def available_cores(root: Path = Path("/"), allowed: int | None = None) -> int:
    """Those that this process may run on, at most the whole cores of its control groups' quotas; `allowed` is for tests.

    A quota limits time, not places: 1.5 cores let two threads run for three quarters of each period and then stop both. Threads
    that wait for each other at every step are faster if none of them is ever stopped, and the rest of the quota is what the
    server's other processes compute with. So 1.5 is one core, and so is 0.5.
    """
    places = len(os.sched_getaffinity(0)) if allowed is None else allowed
    return max(1, min((places, *_quotas(root))))


def _quotas(root: Path) -> Iterator[int]:
    """In whole cores, of each group that has a quota."""
    for group in groups_of("cpu", root):
        quota_us, period_us = _quota_us(group)
        if quota_us is not None and period_us:
            yield quota_us // period_us


def _quota_us(group: GroupPlace) -> tuple[int | None, int | None]:
    """Time in each period, and the period; no time where there is no limit."""
    if not group.is_version_2:
        return read_number(group.path / "cpu.cfs_quota_us"), read_number(group.path / "cpu.cfs_period_us")
    match read_text(group.path / "cpu.max").split():
        case [quota, period] if quota.isdecimal() and period.isdecimal():
            return int(quota), int(period)
        case _:
            return None, None
