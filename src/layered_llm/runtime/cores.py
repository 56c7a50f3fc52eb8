"""How many processor cores this process may use.

Must not know: what they are used for.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from layered_llm.runtime.control_groups import GroupPlace, groups_of, read_number, read_text


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
