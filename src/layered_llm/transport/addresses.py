"""Where the links of one engine generation are bound.

Must not know: sockets, who runs in which process.

Addresses are ipc:// paths in a private directory, or inproc:// names for an engine inside one process. Those of one
generation are never used by another, so that no stale message reaches a new process; only the address where API processes
meet the supervisor stays the same.
"""

from pathlib import Path
from typing import Final

import attrs

MAX_IPC_PATH_BYTES: Final = 107
"""sun_path of a Unix socket has 108 bytes, the last of them a zero."""
_IPC: Final = "ipc://"
_INPROC: Final = "inproc://"
_LARGEST_INDEX: Final = 9999


class AddressError(ValueError):
    """An address that cannot be bound or connected; says which and why."""


def checked_address(address: str) -> str:
    """`address` itself. Raises AddressError unless it is an ipc:// path that fits a Unix socket, or an inproc:// name."""
    if address.startswith(_INPROC) and address != _INPROC:
        return address
    if not address.startswith(_IPC) or address == _IPC:
        raise AddressError(f"{address!r} is neither an ipc:// path nor an inproc:// name")
    try:
        path_bytes = len(address.removeprefix(_IPC).encode())
    except UnicodeEncodeError as error:
        raise AddressError(f"the socket path of {address!r} is no UTF-8") from error
    if path_bytes > MAX_IPC_PATH_BYTES:
        raise AddressError(
            f"the socket path of {address!r} has {path_bytes} bytes, at most {MAX_IPC_PATH_BYTES} are possible: "
            "use a run directory with a shorter path"
        )
    return address


def ipc_path(address: str) -> Path | None:
    """The file behind an ipc:// address; None for an address without a file."""
    return Path(address.removeprefix(_IPC)) if address.startswith(_IPC) else None


@attrs.frozen(kw_only=True)
class LinkAddresses:
    """The addresses of one engine generation.

    Raises AddressError at once when any of them, up to index 9999, would be too long.
    """

    prefix: str
    """Scheme and directory, or scheme and engine name, with a "/" at the end."""
    generation: int

    def __attrs_post_init__(self) -> None:
        checked_address(max(self.supervisor, self.text(_LARGEST_INDEX), key=len))

    @classmethod
    def in_directory(cls, directory: Path, *, generation: int) -> "LinkAddresses":
        """Sockets in `directory`, which the caller makes private (0700) and removes."""
        return cls(prefix=f"{_IPC}{directory.absolute()}/", generation=generation)

    @classmethod
    def in_process(cls, engine: str, *, generation: int) -> "LinkAddresses":
        """Names inside one context; `engine` keeps two engines of one context apart."""
        return cls(prefix=f"{_INPROC}{engine}/", generation=generation)

    def remove_sockets(self) -> None:
        """Removes the files of this generation's sockets, whose processes are gone. Raises OSError."""
        path = ipc_path(self.prefix)
        for socket in path.glob(self._of_generation("*").removeprefix(self.prefix)) if path is not None else ():
            socket.unlink(missing_ok=True)

    @property
    def supervisor_for_apis(self) -> str:
        """Where API processes meet the supervisor: the same in every generation."""
        return f"{self.prefix}supervisor"

    @property
    def supervisor(self) -> str:
        """Where the engine processes of this generation meet the supervisor."""
        return self._of_generation("supervisor")

    @property
    def scheduler(self) -> str:
        """Where text workers meet the scheduler."""
        return self._of_generation("scheduler")

    def text(self, index: int) -> str:
        """Where API processes meet one text worker."""
        return self._of_generation(f"text-{index}")

    @property
    def runtime(self) -> str:
        """Where the scheduler meets the ranks of the runtime."""
        return self._of_generation("runtime")

    def _of_generation(self, name: str) -> str:
        return f"{self.prefix}g{self.generation}-{name}"
