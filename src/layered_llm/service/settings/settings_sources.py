"""Where values of settings come from: flags, environment variables, a TOML file.

Must not know: which settings there are, which source goes before which, the process's own environment.

Every source refuses names that are no setting, and says which are.
"""

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from layered_llm.formats.untrusted_files import UnreadableFile, read_text
from layered_llm.service.settings import command_flags
from layered_llm.service.settings.command_flags import ENVIRONMENT_PREFIX
from layered_llm.service.settings.settings_fields import (
    Field,
    SettingsError,
    base_type,
    check,
    flag,
    got,
    is_tuple,
    kind,
    metavar,
    shown_default,
)

CONFIG_VARIABLE: Final = "LAYERED_LLM_CONFIG"
CONFIG_FLAG: Final = "--config"
_LIKENESS: Final = 0.7
"""Of two names, as difflib counts it, from which on one may have been meant by the other."""
_MOST_FILE_BYTES: Final = 1 << 20
_WHERE_LISTED: Final = "`layered-llm serve --help` lists all"
_OF_SERVICE: Final = re.compile(
    rf"{ENVIRONMENT_PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)", re.ASCII
)
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")
"""The value of NAME_PORT, which may be a setting's name."""

_WORDS: Final = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def variable(name: str) -> str:
    """The environment's spelling of a field's name."""
    return ENVIRONMENT_PREFIX + name.upper()


def closest(word: str, known: Iterable[str]) -> str:
    """A hint at what was meant, with a blank before it; empty where nothing known is like `word`.

    What all names of one kind begin with says nothing of how like they are.
    """
    names = {_bare(name): name for name in known}
    bare = _bare(word)
    begun = [name for name in names if bare and name.startswith(bare)]
    found = begun or difflib.get_close_matches(bare, names, n=1, cutoff=_LIKENESS)
    return f" (did you mean {names[found[0]]}?)" if found else ""


def _bare(name: str) -> str:
    return name.removeprefix(ENVIRONMENT_PREFIX).lstrip("-").replace("-", "_").lower()


def elsewhere(name: str, command: str) -> str:
    """Where what is no flag of `command` is one, with a colon before it; empty where nothing knows it."""
    bare = _bare(name)
    others = [f"`layered-llm {other}`" for other, flags in command_flags.FLAGS.items() if other != command and bare in flags]
    places = ["a field of each request"] if bare in command_flags.REQUEST_FIELDS else []
    places += [f"a flag of {' and '.join(others)}"] if others else []
    return f": it is {', and '.join(places)}" if places else ""


def service_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The variables with our prefix that Kubernetes sets for services, whose name may begin as ours does; they are no settings.

    See https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables.
    """
    return tuple(sorted(name for name, value in environment.items() if _is_of_service(name, value)))


def _is_of_service(name: str, value: str) -> bool:
    return name.startswith(ENVIRONMENT_PREFIX) and (
        _OF_SERVICE.fullmatch(name) is not None or (name.endswith("_PORT") and _SERVICE_URL.match(value) is not None)
    )


def add_flags(
    parser: argparse.ArgumentParser, fields: Sequence[Field], groups: Mapping[str, str], defaults: Mapping[str, Any]
) -> None:
    """Adds --config, and one flag for each field of these groups. Unset flags leave no trace in the namespace.

    Args:
        groups: the groups' keys and titles, in order.
        defaults: what differs from the fields' own defaults.
    """
    add_config_flag(parser)
    for key, title in groups.items():
        group = parser.add_argument_group(title)
        for field in fields:
            if field.metadata["group"] == key:
                _add_flag(group, field, defaults.get(field.name, field.default))


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument_group("configuration").add_argument(
        CONFIG_FLAG, default=argparse.SUPPRESS, metavar="FILE", help=f"TOML file with settings [{CONFIG_VARIABLE}]"
    )


def to_bool(text: str, name: str) -> bool:
    """Raises SettingsError, which calls the setting `name`."""
    if text.strip().lower() not in _WORDS:
        raise SettingsError(f"{name} must be true or false, got {text!r}")
    return _WORDS[text.strip().lower()]


def from_environment(fields: Sequence[Field], environment: Mapping[str, str]) -> dict[str, Any]:
    """Values by field name, from the variables with our prefix; an empty one counts as unset. Raises SettingsError."""
    by_variable = {variable(field.name): field for field in fields}
    others = {CONFIG_VARIABLE, *command_flags.variables()}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX) or name in others or _is_of_service(name, text):
            continue
        if name not in by_variable:
            hint = closest(name, (*by_variable, *others)) or elsewhere(name, "")
            raise SettingsError(f"{name} is no setting{hint}; {_WHERE_LISTED}")
        if not text:
            continue
        field = by_variable[name]
        values[field.name] = _from_text(field, text, name)
        check(field, values[field.name], name)
    return values


def from_file(fields: Sequence[Field], path: Path) -> dict[str, Any]:
    """Values by field name, from a TOML file whose keys are the fields' names or their flags' without `--`.

    The tables of commands are checked, and left to `table_of`. Raises SettingsError.
    """
    by_name = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    for key, value in _read(path).items():
        name = key.replace("-", "_")
        if name in command_flags.FLAGS:
            command_flags.from_table(name, value, path)
            continue
        if name not in by_name:
            hint = elsewhere(name, "") or closest(name, by_name)
            raise SettingsError(f"{path}: {key} is no setting{hint}; {_WHERE_LISTED}")
        if name in values:
            raise SettingsError(f"{path}: {key} is set twice, as {name} and as {name.replace('_', '-')}")
        values[name] = _from_toml(by_name[name], value, f"{path}: {key}")
        check(by_name[name], values[name], f"{path}: {key}")
    return values


def table_of(command: str, path: Path) -> command_flags.Source:
    """What a TOML file says of a command's own flags. Raises SettingsError."""
    return command_flags.from_table(command, _read(path).get(command, {}), path)


def _add_flag(group: "argparse._ArgumentGroup", field: Field, default: Any) -> None:
    meta = field.metadata
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field, default)}
    if base_type(field) is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        shown = "{" + ",".join(meta["choices"]) + "}" if meta["choices"] else metavar(field)
        options |= {"type": base_type(field), "metavar": shown} | ({"nargs": "+"} if is_tuple(field) else {})
    group.add_argument(flag(field.name), *meta["aliases"], **options)


def _help(field: Field, default: Any) -> str:
    shown = shown_default(default)
    told = f" (default: {shown})" if shown else ""
    return f"{field.metadata['help']}{told} [{variable(field.name)}]"


def _from_text(field: Field, text: str, name: str) -> Any:
    base = base_type(field)
    if is_tuple(field):
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not parts:
            raise SettingsError(f"{name} must have a value between its commas; to leave it unset, make it empty")
        return parts
    if base is bool:
        return to_bool(text, name)
    try:
        return base(text)
    except ValueError:
        raise SettingsError(f"{name} must be {kind(field)}, got {text!r}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path, most_bytes=_MOST_FILE_BYTES)
    except UnreadableFile as error:
        raise SettingsError(f"the configuration file {error}") from error
    if text is None:
        raise SettingsError(f"the configuration file {path} cannot be read: No such file or directory")
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except ValueError as error:  # of a number with too many digits, too
        raise SettingsError(f"{path}: not a TOML file: {error}") from error
    except RecursionError:
        raise SettingsError(f"{path}: not a TOML file: it is nested too deeply") from None


def _from_toml(field: Field, value: Any, name: str) -> Any:
    if not is_tuple(field):
        return _item(field, value, name, kind(field))
    wanted = f"an array, each item {kind(field)}"
    if not isinstance(value, list):
        raise SettingsError(f"{name} must be {wanted}{got(field, value)}")
    return tuple(_item(field, item, name, wanted) for item in value)


def _item(field: Field, value: Any, name: str, wanted: str) -> Any:
    base = base_type(field)
    is_whole_number = base is float and type(value) is int
    if type(value) is not base and not is_whole_number:  # an exact match: to Python, true is an integer
        raise SettingsError(f"{name} must be {wanted}{got(field, value)}")
    return value
