"""OpenAI's `system_fingerprint`: one word for what a server's outputs depend on besides the request.

Must not know: HTTP, the engine.

Two servers of the same version and settings have the same one, wherever they listen and however they log.
"""

import hashlib
import json
from typing import Final

import attrs

from layered_llm.service.settings import Settings

_GROUPS: Final = ("model", "engine", "runtime", "scripted")
_DIGITS: Final = 16


def fingerprint(version: str, settings: Settings) -> str:
    """`fp_` and hexadecimal digits."""
    fields = [field.name for field in attrs.fields(Settings) if field.metadata["group"] in _GROUPS]
    said = json.dumps([version, {name: getattr(settings, name) for name in fields}], sort_keys=True)
    return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:_DIGITS]}"
