"""Conversations rendered to text by a checkpoint's own Jinja template.

Must not know: tokens, HTTP, the machine's clock (it is passed in).

The environment offers what Hugging Face documents for chat templates: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that escapes no HTML, and the `generation` block, whose only use is in training. It is sandboxed,
since a template is a program of whoever published the checkpoint.

Invariant: whatever a template does, the caller gets a text or a TemplateFailed.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from layered_llm.domain.messages.prompts import ChatMessage

Clock = Callable[[], dt.datetime]


@attrs.frozen(kw_only=True)
class TemplateFailed:
    """The template refused the conversation or is broken."""

    message: str


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` renders what it holds."""

    tags: Final = {"generation"}  # type: ignore[misc]  # jinja2 declares a class variable and reads it as one

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template with the variables of its checkpoint. Any thread may render at any time."""

    def __init__(self, source: str, *, variables: Mapping[str, str], clock: Clock) -> None:
        """`variables` are bos_token, eos_token and the like; a source that does not compile fails at each rendering."""
        self._variables = dict(variables)
        self._template: jinja2.Template | TemplateFailed
        try:
            self._template = _environment(clock).from_string(source)
        except Exception as error:  # noqa: BLE001 - the parser raises more than its own errors, such as RecursionError
            self._template = _failure(error)

    def render(self, messages: Sequence[ChatMessage]) -> str | TemplateFailed:
        """The conversation as text, ready for the assistant's next turn, with all special tokens that it needs."""
        if isinstance(self._template, TemplateFailed):
            return self._template
        turns = [_turn(message) for message in messages]
        try:
            return self._template.render(
                **self._variables, messages=turns, tools=None, documents=None, add_generation_prompt=True
            )
        except Exception as error:  # noqa: BLE001 - a template is a foreign program: it may raise anything
            return _failure(error)


def _turn(message: ChatMessage) -> dict[str, str]:
    """A message as templates index it; they concatenate the content, so that none is the empty text."""
    turn = {"role": message.role, "content": message.content or ""}
    return turn if message.name is None else turn | {"name": message.name}


def _failure(error: Exception) -> TemplateFailed:
    text = str(error)
    if isinstance(error, jinja2.TemplateError) and text:
        return TemplateFailed(message=text)
    return TemplateFailed(message=f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _environment(clock: Clock) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | str | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
