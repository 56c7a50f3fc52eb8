"""How many processor cores this process may use.

Must not know: what they are used for.
"""

import os
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """The cores that this process may run on, at most what its control group (v2) may use of them in time, rounded up."""
    allowed = len(os.sched_getaffinity(0))
    match _text(root / "sys/fs/cgroup/cpu.max").split():
        case [quota, period] if quota.isdigit() and period.isdigit():
            return max(1, min(allowed, -(-int(quota) // int(period))))
        case _:
            return allowed


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
