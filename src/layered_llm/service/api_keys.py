"""The API keys that the operator configured: from the setting itself, and from a file of them.

Must not know: HTTP, what a key opens.

No message shows a key. A file that has none is an error, since a server without keys is open to everybody.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from layered_llm.service.settings import Settings, SettingsError
from layered_llm.service.settings_fields import user_path

NamedKey = tuple[str, str]
"""Name and key."""

_KEY: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"[\w.@/-]{1,64}")


def read_api_keys(settings: Settings) -> tuple[NamedKey, ...]:
    """All keys, each with a name: its own, or `key-N` by its place, the next one that nobody has. Raises SettingsError.

    Keys have one name only where the operator gave it to each of them.
    """
    found = (*_given(settings), *_in_file(settings))
    taken = {name for name, _, _ in found}
    keys: dict[str, str] = {}
    for name, key, source in found:
        if not _KEY.fullmatch(key):
            raise SettingsError(f"{source}: a key must be visible ASCII characters without blanks")
        if name and not _NAME.fullmatch(name):
            raise SettingsError(f"{source}: a key's name has up to 64 letters, digits and any of _ . @ / -")
        if key in keys:
            raise SettingsError(f"{source}: the key is there twice, the other one's name is {keys[key]}")
        keys[key] = name or next(free for free in map("key-{}".format, itertools.count(len(keys) + 1)) if free not in taken)
        taken.add(keys[key])
    return tuple((name, key) for key, name in keys.items())


def _given(settings: Settings) -> Iterator[tuple[str, str, str]]:
    for place, key in enumerate(settings.api_key, start=1):
        yield "", key, f"key {place} of --api-key"


def _in_file(settings: Settings) -> Iterator[tuple[str, str, str]]:
    if settings.api_key_file is None:
        return
    path = user_path(settings.api_key_file)
    found = False
    for number, line in enumerate(_lines(path), start=1):
        words = line.strip()
        if words and not words.startswith("#"):
            found = True
            name, separator, key = words.partition(":")
            yield (name.strip(), key.strip(), f"{path}:{number}") if separator else ("", words, f"{path}:{number}")
    if not found:
        raise SettingsError(f"{path}: the file of API keys has none, and a server without keys is open to everybody")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{path}: the file of API keys cannot be read: {reason}") from None
