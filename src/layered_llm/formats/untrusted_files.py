"""Reads files that somebody else made or named: regular ones only, of a bounded size, as JSON of a bounded shape.

Must not know: what is in a file, models, tokenizers.

A checkpoint is downloaded, and what lies under a file's name need not be a file: opening a named pipe waits for ever, and a
device has no end. Whatever is found, a reader gets the content, None where there is nothing, or UnreadableFile.
"""

import json
import mmap
import os
import re
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

MOST_JSON_BYTES: Final = 1 << 24
"""Of a configuration or an index: an index of 100,000 tensors has 10 MB. Parsed, it may take 25 times its size."""
_MOST_LEVELS: Final = 64
_MOST_DIGITS: Final = 100
"""More than tokenizers' 10^30 for "no limit", and few enough for a float."""
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SHOWN: Final = 500

_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnreadableFile(Exception):  # noqa: N818 - states what was found
    """The file is there and cannot be read; one line that names it and says why."""


def read_text(path: Path, *, most_bytes: int = MOST_JSON_BYTES) -> str | None:
    """The UTF-8 text of a regular file; None where there is no such file. Raises UnreadableFile."""
    try:
        with _opened(path) as file:
            content = file.read(most_bytes + 1) or b""  # None: a file of the kernel that has nothing to give yet
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFile(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    if len(content) > most_bytes:
        raise UnreadableFile(f"{shown(path)} has more than {most_bytes} bytes, which is the most that is read of such a file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{shown(path)} cannot be read: it is not UTF-8 at byte {error.start}") from error


def read_json(path: Path, *, most_bytes: int = MOST_JSON_BYTES) -> dict[str, Any] | None:
    """The JSON object that a file holds; None where there is no such file. Raises UnreadableFile."""
    text = read_text(path, most_bytes=most_bytes)
    return None if text is None else parse_json(text, shown(path))


def parse_json(text: str, place: str, *, is_repetition_refused: bool = False) -> dict[str, Any]:
    """The JSON object that `text` is; `place` names its file in messages. Of a key that is there twice the last counts, as in
    Python's own reader, or it is refused.

    Raises UnreadableFile for other JSON and none, for more than 64 levels, and for numbers of more than 100 digits.
    """
    try:
        pairs = _without_repetition if is_repetition_refused else None
        content = json.loads(text, parse_int=_bounded_int, object_pairs_hook=pairs)
        if _SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UnreadableFile(f"{place} is no valid JSON: it spells half of a surrogate pair") from error
    except ValueError as error:
        raise UnreadableFile(f"{place} is no valid JSON: {error}") from error
    except RecursionError:
        raise UnreadableFile(f"{place} is nested too deeply: at most {_MOST_LEVELS} levels are read") from None
    if not isinstance(content, dict):
        raise UnreadableFile(f"{place} holds no JSON object")
    if _is_deep(content):
        raise UnreadableFile(f"{place} is nested too deeply: at most {_MOST_LEVELS} levels are read")
    return content


def map_file(path: Path) -> mmap.mmap:
    """A regular file, mapped to be read. Raises UnreadableFile, for a missing or empty one, too."""
    try:
        with _opened(path) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UnreadableFile(f"{shown(path)} does not exist") from None
    except OSError as error:
        raise UnreadableFile(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    except ValueError:
        raise UnreadableFile(f"{shown(path)} is empty") from None


def is_regular(path: Path) -> bool:
    """Whether there is a regular file that can be looked at."""
    return stat.S_ISREG(_mode(path))


def is_directory(path: Path) -> bool:
    """Whether there is a directory that can be looked at."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """0 where there is nothing, or nothing that can be looked at."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):  # Path.is_file raises some of these, as for a name that is too long
        return 0


def shown(name: object) -> str:
    """A path or another name from a file, as a message of one line has it."""
    text = str(name)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _opened(path: Path) -> BinaryIO:
    """Raises OSError, and UnreadableFile for what is no regular file."""
    try:
        _refuse_irregular(path, path.stat().st_mode)  # opening a device may already do something
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - Path.open takes no opener
    except ValueError as error:  # a name with a zero byte
        raise UnreadableFile(f"{shown(path)} cannot be read: {error}") from error
    try:
        _refuse_irregular(path, os.fstat(file.fileno()).st_mode)
    except UnreadableFile:
        file.close()
        raise
    return file


def _open_at_once(path: str, flags: int) -> int:
    """Where somebody puts a pipe at the last moment, opening it would wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK)


def _refuse_irregular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise UnreadableFile(f"{shown(path)} is {kind}, not a regular file")


def _bounded_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, and at most {_MOST_DIGITS} are read")
    return int(digits)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError(f"it has {shown(Counter(name for name, _ in pairs).most_common(1)[0][0])} twice")
    return content


def _is_deep(content: dict[str, Any]) -> bool:
    level: list[Any] = [content]
    for _ in range(_MOST_LEVELS):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
