"""The control groups that bind this process: where the files of a controller's limits are.

Must not know: what the files say, what is limited.

Version 2 has one tree of groups for all controllers, version 1 one for each; a machine may have both, and each controller is in
one of them (https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/). A limit binds a group and all groups below it,
so that the process's own group and every one above it count. In a container the mount may begin at the container's own group,
and those above it cannot be seen.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import attrs

_SEEN_FIELD: Final = 3
_PLACE_FIELD: Final = 4
_FILE_SYSTEM_FIELDS: Final = 3
"""Of a line of proc_pid_mountinfo(5): before " - " the fifth is where the mount is, the fourth what of its file system is seen
there; after it come type, source and options."""
_UNIFIED: Final = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
"""Where version 2 is mounted by convention: alone, and beside version 1."""
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@attrs.frozen
class GroupPlace:
    """A group's directory, in either version."""

    path: Path
    is_version_2: bool


@attrs.frozen
class _Mount:
    place: str
    """Where it is seen, without the leading slash."""
    root: PurePosixPath
    """The group that is seen there."""


def groups_of(controller: str, root: Path) -> Iterator[GroupPlace]:
    """The directories that may limit this process by `controller`, its own group's first; not all of them need be there."""
    for line in read_text(root / "proc/self/cgroup").split("\n"):  # paths may have what str.splitlines takes for an end
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        is_version_2 = number == "0" and not controllers
        if is_version_2 or controller in controllers.split(","):
            for mount in _mounts(controller, root, is_version_2=is_version_2):
                for group in _along(mount, PurePosixPath("/", path)):
                    yield GroupPlace(root / mount.place / group, is_version_2)


def read_text(path: Path) -> str:
    """What a file of the kernel says, paths as the system has them; empty where there is none, or none that may be read."""
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """None for "max", for what is no whole number, and where there is no file."""
    text = read_text(path).strip()
    return int(text) if text.isdecimal() else None


def _along(mount: _Mount, own: PurePosixPath) -> Iterator[PurePosixPath]:
    """The process's group and those above it, relative to the mount, as far as the mount shows them."""
    if ".." in own.parts:  # outside of what a control group namespace shows
        below = PurePosixPath()
    elif own.is_relative_to(mount.root):
        below = own.relative_to(mount.root)
    else:  # the mount was made in another namespace, and calls its groups otherwise
        below = own.relative_to("/")
    yield from (below, *below.parents)


def _mounts(controller: str, root: Path, *, is_version_2: bool) -> list[_Mount]:
    found = [
        mount
        for mount, kind, options in _mounted(root)
        if (kind == "cgroup2" if is_version_2 else kind == "cgroup" and controller in options)
    ]
    conventional = _UNIFIED if is_version_2 else (f"sys/fs/cgroup/{controller}",)
    return found or [_Mount(place, PurePosixPath("/")) for place in conventional]


def _mounted(root: Path) -> Iterator[tuple[_Mount, str, list[str]]]:
    """Each mount with its file system's type and options."""
    for line in read_text(root / "proc/self/mountinfo").split("\n"):
        before, _, after = line.partition(" - ")
        mount, file_system = before.split(" "), after.split(" ")
        if len(mount) > _PLACE_FIELD and len(file_system) >= _FILE_SYSTEM_FIELDS:
            place, seen = _unescaped(mount[_PLACE_FIELD]), _unescaped(mount[_SEEN_FIELD])
            yield _Mount(place.lstrip("/"), PurePosixPath("/", seen)), file_system[0], file_system[2].split(",")


def _unescaped(path: str) -> str:
    """Blanks and backslashes are written as octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)
