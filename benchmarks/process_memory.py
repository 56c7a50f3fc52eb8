"""Memory that a process and all below it take together, as Linux tells it."""

import contextlib
from pathlib import Path
from typing import Final

from benchmarks.processor_time import ProcessorTimes

_SHARE: Final = "Pss:"
"""Resident pages; of one that several processes map, each counts its share."""
_KIB: Final = 1024


def family_bytes(root: int) -> int:
    """Of the process `root` and its descendants: what the machine would have free without them, but for files it keeps."""
    return sum(map(_bytes, ProcessorTimes.now().family({root})))


def _bytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended since the processes were listed
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith(_SHARE):
                return int(line.split()[1]) * _KIB
    return 0
