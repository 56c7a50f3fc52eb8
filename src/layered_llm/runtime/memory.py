"""How much memory this process can still use.

Must not know: models, what the memory is for.

Control groups limit it too, the process's own and every one above: version 2 has one tree of groups, version 1 one for each
controller (https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/memory.html). The page cache that a group can drop
counts as free.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

_KIB: Final = 1024


@attrs.frozen(kw_only=True)
class _GroupFiles:
    """Names of a version's files."""

    mount: str
    limit: str
    used: str
    droppable: str
    """Of memory.stat."""


_VERSION_2: Final = _GroupFiles(mount="sys/fs/cgroup", limit="memory.max", used="memory.current", droppable="inactive_file")
_VERSION_1: Final = _GroupFiles(
    mount="sys/fs/cgroup/memory",
    limit="memory.limit_in_bytes",
    used="memory.usage_in_bytes",
    droppable="total_inactive_file",
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the kernel would give without swapping, under the control groups' limits; None where nothing is known."""
    known = [limit for limit in (_machine_bytes(root), *_group_bytes(root)) if limit is not None]
    return min(known, default=None)


def _machine_bytes(root: Path) -> int | None:
    kib = _fields(root / "proc/meminfo").get("MemAvailable:")
    return None if kib is None else kib * _KIB


def _group_bytes(root: Path) -> Iterator[int | None]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            yield from _bytes_along(root, _VERSION_2, path)
        elif "memory" in controllers.split(","):
            yield from _bytes_along(root, _VERSION_1, path)


def _bytes_along(root: Path, files: _GroupFiles, path: str) -> Iterator[int | None]:
    """Of the group and of each above it; in a container those above may not be seen, and the mount is the container's own."""
    own = PurePosixPath(path.lstrip("/"))
    for group in (own, *own.parents):
        place = root / files.mount / group
        limit, used = _number(place / files.limit), _number(place / files.used)
        if limit is not None and used is not None:
            yield max(0, limit - used + _fields(place / "memory.stat").get(files.droppable, 0))


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
