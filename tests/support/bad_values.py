"""Wrong values for every number of a body, made from the tables that bodies are read by, so that a new field is among them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import jsonschema

from layered_llm.transport.http.openai.schema import endpoint_fields
from layered_llm.transport.http.openai.schema.bodies import Field
from layered_llm.transport.http.sglang import generate_body
from layered_llm.transport.http.vllm import tokenizer_bodies
from support.http_client import CHAT, COMPLETIONS, MESSAGES

TABLES = {
    CHAT: endpoint_fields.CHAT,
    COMPLETIONS: endpoint_fields.COMPLETIONS,
    "/generate": generate_body.GENERATE,
    "/tokenize": tokenizer_bodies.TOKENIZE,
    "/detokenize": tokenizer_bodies.DETOKENIZE,
}
_BASES: dict[str, dict[str, Any]] = {
    CHAT: {"max_tokens": 2, "messages": MESSAGES},
    COMPLETIONS: {"max_tokens": 2, "prompt": "x"},
    "/generate": {"sampling_params": {"max_new_tokens": 2}, "text": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [1]},
}
"""Short ones: a body that is taken is not to hold the test up."""

NUMBERS = (
    "-1", "0", "-0", "0.5", "-0.5", "1e-400", "2", "1e30", "1e308", "9223372036854775808", "-9223372036854775809",
    "18446744073709551616", "1" + "0" * 4000,
)  # fmt: skip
NO_JSON = ("1e400", "-1e400", "NaN", "Infinity", "-Infinity", "1" + "0" * 5000, "01", "+1", "0x10")
OTHERS = ('"1"', '""', "true", "false", "[]", "[1]", "[[1]]", "[[[[1]]]]", "{}", '{"a": 1}', "[null]")


@attrs.frozen(kw_only=True)
class BadValue:
    """A body with one value that may be wrong."""

    path: str
    field: Field
    value: str
    """The field's value as JSON, or what is none."""

    @property
    def body(self) -> bytes:
        others = dict(_BASES[self.path])
        if self.field.name == "input_ids":
            del others["text"]
        others.pop(self.field.name, None)
        head = json.dumps(others)[1:-1]
        return f'{{{head}{", " if head else ""}"{self.field.name}": {self.value}}}'.encode()

    @property
    def is_described(self) -> bool:
        """Whether the field's schema has the value."""
        try:
            value = json.loads(self.value)
        except ValueError:
            return False
        return bool(jsonschema.Draft202012Validator(self.field.schema).is_valid(value))

    @property
    def is_json(self) -> bool:
        return not any(word in self.value for word in NO_JSON)


def bad_values(path: str) -> Iterator[BadValue]:
    """Each value in each place of the endpoint's body that is for a number."""
    for field in TABLES[path].values():
        for holder in _holders(field.schema):
            for value in (*NUMBERS, *NO_JSON, *OTHERS):
                yield BadValue(path=path, field=field, value=holder.replace("#", value))


def _holders(schema: Mapping[str, Any]) -> Iterator[str]:
    """JSON texts that have `#` where `schema` has a number."""
    kinds = schema.get("type", ())
    if {"integer", "number"} & {*([kinds] if isinstance(kinds, str) else kinds)}:
        yield "#"
    for part in schema.get("anyOf", ()):
        yield from _holders(part)
    for inner in _holders(schema["items"]) if "items" in schema else ():
        yield f"[{inner}]"
        yield f"[1, {inner}]" if inner == "#" else f"[{inner}, {inner}]"
    for inner in _holders(schema["additionalProperties"]) if "additionalProperties" in schema else ():
        yield f'{{"5": {inner}}}'
    for name, part in schema.get("properties", {}).items():
        for inner in _holders(part):
            yield f'{{"{name}": {inner}}}'
