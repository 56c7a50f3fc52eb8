"""Options of a device, with the tests' defaults."""

from pathlib import Path
from typing import Any

from layered_llm.runtime.device.options import RuntimeOptions, ScriptOptions
from layered_llm.service.settings.settings import cache_directory, load

_CACHE = cache_directory(load(environment={}))
KERNEL_CACHE: Path | None = None if _CACHE is None else _CACHE / "kernels"
"""The user's own: the kernels are compiled once, and not for each run of the tests."""


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
        "kernels": "auto",
        "kernel_cache": KERNEL_CACHE,
        "kv_dtype": "float32",
        "deterministic": False,
        "script": make_script_options(),
    }
    return RuntimeOptions(**(values | changes))
