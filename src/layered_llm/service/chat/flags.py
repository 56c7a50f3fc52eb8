"""The flags of `chat`, and the request that they stand for.

Must not know: engines, servers, terminals.
"""

import argparse
from typing import Final

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.settings.settings import Settings, SettingsError, add_arguments, flag, load

ENGINE_DEFAULTS: Final = {"log_level": "warning", "max_running_requests": 1}
"""A chat has one request at a time, and the terminal to itself."""
_ENGINE_GROUPS: Final = ("model", "engine", "runtime", "other", "scripted")
_OF_ANY_BACKEND: Final = ("model", "log_level")
_DESCRIPTION: Final = """\
Chats in this terminal: with an engine in this process, or with a server (--url).
Input that is no terminal is answered line by line, with nothing but the answers on standard output."""
_EXAMPLES: Final = """\
examples:
  layered-llm chat ./Qwen3-0.6B --system "You are terse."
  layered-llm chat --url http://127.0.0.1:8000
  echo "What is the capital of France?" | layered-llm chat --temperature 0 --max-tokens 16
"""


@attrs.frozen(kw_only=True)
class Server:
    """An OpenAI-compatible server."""

    url: str
    api_key: str | None = attrs.field(repr=False)
    model: str | None
    """None: the first that it lists."""


@attrs.frozen(kw_only=True)
class ChatRequest:
    """All that a chat depends on."""

    settings: Settings
    server: Server | None
    """None: an engine in this process."""
    params: SamplingParams
    system: str | None


def add_chat_arguments(parser: argparse.ArgumentParser, settings_help: str) -> None:
    """Adds the flags, a description and examples."""
    parser.description = _DESCRIPTION
    parser.epilog = f"{settings_help}\n{_EXAMPLES}"
    group = parser.add_argument_group("conversation")
    group.add_argument("--system", metavar="TEXT", help="system prompt")
    group.add_argument("--temperature", type=float, metavar="X", help=_open("0 takes the likeliest token"))
    group.add_argument("--top-p", type=float, metavar="X", help=_open("keep the likeliest tokens of this total"))
    group.add_argument("--top-k", type=int, metavar="N", help=_open("keep the N likeliest tokens"))
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="most tokens of one answer (default: what the context has left)"
    )
    group.add_argument("--seed", type=int, metavar="N", help="of each answer (default: a new one each time)")
    group = parser.add_argument_group("server")
    group.add_argument("--url", metavar="URL", help="chat with this OpenAI-compatible server, with or without /v1")
    group.add_argument("--api-key", dest="key", metavar="KEY", help="sent to that server as a bearer token")
    add_arguments(parser, _ENGINE_GROUPS, ENGINE_DEFAULTS)


def read_request(arguments: argparse.Namespace) -> ChatRequest:
    """The request that parsed flags stand for. Raises SettingsError."""
    try:
        params = SamplingParams(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            max_tokens=arguments.max_tokens,
            seed=arguments.seed,
        )
    except ParameterError as error:
        raise SettingsError(f"{flag(error.param)}: {error.message}") from error
    return ChatRequest(
        settings=load(arguments, defaults=ENGINE_DEFAULTS), server=_server(arguments), params=params, system=arguments.system
    )


def _server(arguments: argparse.Namespace) -> Server | None:
    if not arguments.url:
        if arguments.key is not None:
            raise SettingsError("--api-key needs --url")
        return None
    for field in attrs.fields(Settings):
        if field.name in arguments and field.name not in _OF_ANY_BACKEND:
            raise SettingsError(f"{flag(field.name)} sets up an engine, and with --url there is none in this process")
    return Server(url=arguments.url, api_key=arguments.key, model=getattr(arguments, "model", None))


def _open(text: str) -> str:
    return f"{text} (default: as the model advises; with --url the server's own)"
