"""How much memory this process can still use.

Must not know: models, what the memory is for.
"""

from pathlib import Path
from typing import Final

_KIB: Final = 1024


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the kernel would give without swapping, under the control group's limit; None where neither is known."""
    known = [limit for limit in (_machine_bytes(root), _group_bytes(root)) if limit is not None]
    return min(known, default=None)


def _machine_bytes(root: Path) -> int | None:
    kib = _fields(root / "proc/meminfo").get("MemAvailable:")
    return None if kib is None else kib * _KIB


def _group_bytes(root: Path) -> int | None:
    """Of control groups v2; the page cache that the group can drop counts as free."""
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is None or used is None:
        return None
    return max(0, limit - used + _fields(group / "memory.stat").get("inactive_file", 0))


def _fields(path: Path) -> dict[str, int]:
    lines = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
