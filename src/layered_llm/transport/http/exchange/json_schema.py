"""JSON Schemas (draft 2020-12, as OpenAPI 3.1 has them) out of a few words.

Must not know: endpoints, fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def integer(low: int | None = None, high: int | None = None, **more: object) -> Json:
    """Both bounds are included."""
    return _bounded("integer", minimum=low, maximum=high, **more)


def number(low: float | None = None, high: float | None = None, **more: object) -> Json:
    """Both bounds are included."""
    return _bounded("number", minimum=low, maximum=high, **more)


def string(shortest: int | None = None, longest: int | None = None, **more: object) -> Json:
    """Lengths are in characters."""
    return _bounded("string", minLength=shortest, maxLength=longest, **more)


def boolean(**more: object) -> Json:
    return _bounded("boolean", **more)


def array(items: Mapping[str, Any], fewest: int | None = None, most: int | None = None) -> Json:
    return _bounded("array", items=items, minItems=fewest, maxItems=most)


def record(*, optional: Sequence[str] = (), **properties: Mapping[str, Any]) -> Json:
    """An object with these members, all of them always there but the optional ones; others may come beside them."""
    required = [name for name in properties if name not in optional]
    return _bounded("object", required=required or None, properties=properties)


def nullable(schema: Mapping[str, Any]) -> Json:
    """The same or null."""
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: object) -> Json:
    return {"enum": list(values)}


def either(*schemas: Mapping[str, Any]) -> Json:
    return {"anyOf": list(schemas)}


def ref(name: str) -> Json:
    """A schema among the document's components."""
    return {"$ref": f"#/components/schemas/{name}"}


def described(schema: Mapping[str, Any], text: str) -> Json:
    return {**schema, "description": text}


def _bounded(kind: str, **keywords: object) -> Json:
    return {"type": kind, **{keyword: value for keyword, value in keywords.items() if value is not None}}
