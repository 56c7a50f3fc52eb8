"""Keeps machine code from one run of the program to the next.

Must not know: what the code does, what its key is made from.

An entry is run as it is, and the operator may have put the cache where others write: what somebody else could have written is
not read. An entry is written beside its place and moved there, so that processes that start together do not meet in it. It
carries a digest of its key and itself: one that is cut short, damaged or in another's place is not read either.
"""

import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

_LOG: Final = logging.getLogger(__name__)
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
_WRITERS_BESIDE_THE_OWNER: Final = stat.S_IWGRP | stat.S_IWOTH
_ROOT: Final = 0


def read_code(directory: Path, key: str) -> bytes | None:
    """The code that was kept under `key`; None where there is none that can be trusted."""
    entry = _entry(directory, key)
    try:
        with open(entry, "rb", opener=_open_at_once) as file:
            if not _is_trusted(os.fstat(file.fileno())):
                _LOG.warning("%s is not used: others than this user may have written it", entry)
                return None
            stored = file.read()
    except OSError:
        return None
    expected, code = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return code if _digest(key, code) == expected else None


def keep_code(directory: Path, key: str, code: bytes) -> bool:
    """Whether it is kept. A directory that cannot be written costs a line in the log."""
    entry = _entry(directory, key)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as place:
            beside = Path(place) / entry.name
            beside.write_bytes(_digest(key, code) + code)
            beside.chmod(0o644)
            beside.replace(entry)
    except OSError as error:
        _LOG.warning("the compiled CPU kernels cannot be kept: %s", error)
        return False
    return True


def _entry(directory: Path, key: str) -> Path:
    return directory / f"{key}.o"


def _open_at_once(path: str, flags: int) -> int:
    """Where somebody put a pipe, opening it would wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK)


def _is_trusted(status: os.stat_result) -> bool:
    is_own = status.st_uid in (os.geteuid(), _ROOT)
    return stat.S_ISREG(status.st_mode) and is_own and not status.st_mode & _WRITERS_BESIDE_THE_OWNER


def _digest(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + code).digest()
