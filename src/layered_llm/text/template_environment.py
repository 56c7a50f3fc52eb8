"""What a chat template finds when it runs: Hugging Face's dialect of Jinja.

Must not know: conversations, tokens, the machine's clock (it is passed in).

The environment offers what Hugging Face documents for chat templates: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that escapes no HTML, and the `generation` block, whose only use is in training. It is sandboxed,
since a template is a program of whoever published the checkpoint.

Jinja takes 45 ms to import, so that only who compiles a template imports this.
"""

import datetime as dt
import json
from collections.abc import Callable
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}` renders what it holds."""

    tags: Final = {"generation"}  # type: ignore[misc]  # jinja2 declares a class variable and reads it as one

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_environment(clock: Callable[[], dt.datetime]) -> jinja2.Environment:
    """`clock` is what a template calls for today's date."""
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
