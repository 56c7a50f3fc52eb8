"""Options of a device, with the tests' defaults."""

from pathlib import Path
from typing import Any

from layered_llm.runtime.options import RuntimeOptions, ScriptOptions


def make_script_options(**changes: Any) -> ScriptOptions:
    values: dict[str, Any] = {"name": "hash", "first_id": 97, "id_count": 26, "step_us": 0, "token_us": 0}
    return ScriptOptions(**(values | changes))


def make_options(model: Path, **changes: Any) -> RuntimeOptions:
    values: dict[str, Any] = {
        "device": "cpu",
        "model": model,
        "dtype": "auto",
        "num_pages": 64,
        "memory_ratio": 0.5,
        "page_size_tokens": 4,
        "max_slots": 8,
        "context_override": None,
        "threads": None,
        "script": make_script_options(),
    }
    return RuntimeOptions(**(values | changes))
