"""The API keys and admin keys that the operator configured: from the settings themselves, and from files of them.

Must not know: HTTP, what a key opens.

No message shows a key. A file that has none is an error, since a server without keys is open to everybody. No two keys have one
name but where the operator wrote it so, for a name is a tenant.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from layered_llm.formats.untrusted_files import UnreadableFile, read_text
from layered_llm.service.settings.settings import Settings, SettingsError
from layered_llm.service.settings.settings_fields import user_path

NamedKey = tuple[str, str]
"""Name and key."""

_KEY: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"[\w.@/-]{1,64}")


ADMIN_PREFIX: Final = "admin:"
"""Of the names of admin keys, which so are no names of other keys."""


def read_api_keys(settings: Settings) -> tuple[NamedKey, ...]:
    """All keys, each with a name: its own, or `key-N` by its place, the next one that nobody has. Raises SettingsError.

    Keys have one name only where the operator gave it to each of them.
    """
    return _named(_given("--api-key", settings.api_key), _in_file("API keys", settings.api_key_file))


def read_admin_keys(settings: Settings) -> tuple[NamedKey, ...]:
    """The same for the admin's, each name with `ADMIN_PREFIX`. Raises SettingsError, also for a key that others have."""
    given = () if settings.admin_key is None else (settings.admin_key,)
    keys = _named(_given("--admin-key", given), _in_file("admin keys", settings.admin_key_file))
    others = {key: name for name, key in read_api_keys(settings)}
    for name, key in keys:
        if key in others:
            raise SettingsError(
                f"the admin key {name} is the API key {others[key]} as well: whoever has that would be an admin; give it a key "
                "of its own"
            )
    return tuple((f"{ADMIN_PREFIX}{name}", key) for name, key in keys)


def _named(*sources: Iterable[tuple[str, str, str]]) -> tuple[NamedKey, ...]:
    found = tuple(itertools.chain.from_iterable(sources))
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


def _given(flag: str, keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for place, key in enumerate(keys, start=1):
        yield "", key, f"key {place} of {flag}"


def _in_file(kind: str, file: str | None) -> Iterator[tuple[str, str, str]]:
    if file is None:
        return
    path = user_path(file)
    found = False
    for number, line in enumerate(_lines(kind, path), start=1):
        words = line.strip()
        if words and not words.startswith("#"):
            found = True
            name, separator, key = words.partition(":")
            yield (name.strip(), key.strip(), f"{path}:{number}") if separator else ("", words, f"{path}:{number}")
    if not found:
        raise SettingsError(f"{path}: the file of {kind} has none, and what they are to keep closed would be open")


def _lines(kind: str, path: Path) -> list[str]:
    try:
        text = read_text(path)
    except UnreadableFile as error:
        raise SettingsError(f"the file of {kind} {error}") from None
    if text is None:
        raise SettingsError(f"the file of {kind} {path} cannot be read: No such file or directory")
    return text.removeprefix("\ufeff").splitlines()
