"""Opens the device that the options name.

Must not know: links, policy; torch, unless the device needs it.
"""

import threading
from collections.abc import Callable
from typing import Final, assert_never

from layered_llm.runtime.cpu.pool_size import chosen_context, size_pool
from layered_llm.runtime.device.device import Device, DeviceError, go_on
from layered_llm.runtime.device.options import RuntimeOptions, ScriptOptions
from layered_llm.runtime.models.config_json import Settings
from layered_llm.runtime.models.model_files import read_raw_config
from layered_llm.runtime.scripted.scripted_device import ScriptedDevice, ScriptedPace
from layered_llm.runtime.scripted.scripts import EchoScript, HashScript, Script

_SCRIPTED_CONTEXT_TOKENS: Final = 4096
_SCRIPTED_VOCABULARY_SIZE: Final = 1 << 16
"""Limits of a scripted device whose model directory has no config.json."""
_CELL_BYTES: Final = 4


def block_for(seconds: float) -> None:
    """Blocks the calling thread."""
    threading.Event().wait(seconds)


def open_device(
    options: RuntimeOptions,
    *,
    now_us: Callable[[], int],
    wait: Callable[[float], None] = block_for,
    check: Callable[[], None] = go_on,
) -> Device:
    """`now_us` is a monotonic clock; `wait` lets a scripted step's seconds pass; `check` is called between two parts
    of the opening, and what it raises ends it.

    Raises DeviceError, with one line for the operator, where the device cannot be opened.
    """
    match options.device:
        case "scripted":
            return _open_scripted(options, now_us=now_us, wait=wait)
        case "cpu":
            from layered_llm.runtime.cpu.cpu_opening import open_cpu_device  # noqa: PLC0415 - scripted must start without torch

            check()
            return open_cpu_device(options, now_us=now_us, check=check)
        case _:
            assert_never(options.device)


def _open_scripted(options: RuntimeOptions, *, now_us: Callable[[], int], wait: Callable[[float], None]) -> ScriptedDevice:
    settings = Settings(read_raw_config(options.model))
    context_tokens = settings.size("max_position_embeddings", default=_SCRIPTED_CONTEXT_TOKENS)
    limits = size_pool(
        options,
        page_bytes=options.page_size_tokens * _CELL_BYTES,
        context_tokens=chosen_context(context_tokens, options.context_override),
        vocabulary_size=settings.size("vocab_size", default=_SCRIPTED_VOCABULARY_SIZE),
    )
    return ScriptedDevice(
        limits=limits,
        script=_script(options.script, limits.vocabulary_size),
        pace=ScriptedPace(step_us=options.script.step_us, token_us=options.script.token_us),
        wait=wait,
        now_us=now_us,
    )


def _script(options: ScriptOptions, vocabulary_size: int) -> Script:
    match options.name:
        case "echo":
            return EchoScript()
        case "hash":
            last_id = options.first_id + options.id_count - 1
            if options.id_count < 1 or not 0 <= options.first_id <= last_id < vocabulary_size:
                raise DeviceError(f"the hash script's ids {options.first_id} … {last_id} are not in the vocabulary")
            return HashScript(first_id=options.first_id, id_count=options.id_count)
        case _:
            assert_never(options.name)
