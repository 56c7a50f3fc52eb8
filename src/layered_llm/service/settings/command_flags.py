"""Values for a command's own flags, those that are no settings of the engine, from the environment and the TOML file.

Must not know: what a flag means, how it is parsed, the process's own environment.

`chat --system` is LAYERED_LLM_CHAT_SYSTEM in the environment, and `system` in the file's table [chat]. The names are listed
here, so that a name which is none is found by every command, without the modules of the others.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from layered_llm.service.settings.settings_fields import SettingsError, is_text

ENVIRONMENT_PREFIX: Final = "LAYERED_LLM_"
FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": ("system", "temperature", "top_p", "top_k", "max_tokens", "seed", "url", "api_key"),
    "bench": (
        *("model", "endpoint", "api_key", "first_token_timeout", "idle_timeout"),
        *("concurrency", "rate", "requests", "duration", "warmup", "seed"),
        *("prompts", "prompt_words", "shared_prefix_words", "output_tokens", "ignore_eos", "temperature", "extra_body"),
        *("json", "plot", "no_progress"),
    ),
}
"""Of each command, in the spelling of keys."""
REQUEST_FIELDS: Final = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "n", "seed", "stop", "stop_token_ids",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs", "ignore_eos",
        "stream",
    }
)  # fmt: skip
"""What each request says for itself, and no flag of a server does."""
ALTERNATIVES: Final[Mapping[str, Sequence[Collection[str]]]] = {"chat": (), "bench": ({"concurrency", "rate"},)}
"""Of the flags of one set only one can count."""
NEEDED: Final[Mapping[str, Mapping[str, str]]] = {"chat": {"api_key": "url"}, "bench": {}}
"""Which flag a flag says nothing without."""


@attrs.frozen
class Given:
    """What one place says of a flag."""

    place: str
    """For messages."""
    value: Any
    """A text, or what TOML has."""


Source: TypeAlias = Mapping[str, Given]
"""What the environment, or the file, says: by the flag's name."""


def variable(command: str, name: str) -> str:
    """The environment's spelling of a flag's name."""
    return f"{ENVIRONMENT_PREFIX}{command.upper()}_{name.upper()}"


def variables() -> Iterator[str]:
    """Of all flags of all commands."""
    return (variable(command, name) for command, names in FLAGS.items() for name in names)


def from_environment(command: str, environment: Mapping[str, str]) -> Source:
    """An empty variable counts as unset. Raises SettingsError for what is no text."""
    named = {name: variable(command, name) for name in FLAGS[command]}
    for place in named.values():
        if not is_text(environment.get(place, "")):
            raise SettingsError(f"{place} must be UTF-8 text")
    return {name: Given(place, environment[place]) for name, place in named.items() if environment.get(place)}


def from_table(command: str, table: object, path: Path) -> Source:
    """What the file at `path` has under [command]. Raises SettingsError."""
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {command} must be a table, got {table!r}")
    found: dict[str, Given] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        place = f"{path}: [{command}] {key}"
        if name not in FLAGS[command]:
            raise SettingsError(f"{place} is no flag of {command}; `layered-llm {command} --help` lists all")
        if name in found:
            raise SettingsError(f"{place} is set twice, as {name} and as {name.replace('_', '-')}")
        found[name] = Given(place, value)
    return found


def that_count(command: str, flags: Collection[str], sources: Sequence[Source]) -> Source:
    """Of each flag, the first that `sources` give in order, but for what `flags`, those on the command line, decide.

    Raises SettingsError.
    """
    settled = set(flags)
    counting: dict[str, Given] = {}
    for source in sources:
        for rivals in ALTERNATIVES[command]:
            _refuse_both([source[name] for name in sorted(rivals) if name in source])
        counting |= {name: given for name, given in source.items() if settled.isdisjoint(_rivals(command, name))}
        settled |= source.keys()
    needed = NEEDED[command]
    return {name: given for name, given in counting.items() if name not in needed or needed[name] in settled}


def _refuse_both(given: Sequence[Given]) -> None:
    if len(given) > 1:
        raise SettingsError(f"{given[0].place} and {given[1].place} exclude each other")


def _rivals(command: str, name: str) -> set[str]:
    return {name}.union(*(names for names in ALTERNATIVES[command] if name in names))
