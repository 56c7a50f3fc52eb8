"""A runtime rank's process: its main thread blocks for steps and executes them.

Must not know: text, HTTP, policy, event loops.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from layered_llm.domain.messages.scheduler_runtime import ANSWERING_RANK
from layered_llm.domain.messages.supervision import Role
from layered_llm.runtime.device.device import DeviceError
from layered_llm.runtime.device.options import RuntimeOptions, ScriptOptions
from layered_llm.runtime.opening import open_device
from layered_llm.service.processes.engine_process import EngineArguments, run_engine_process
from layered_llm.service.settings.settings import Settings, cache_directory
from layered_llm.service.workers.runtime_loop import serve_device, warm_up_words
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import SCHEDULER_RUNTIME
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.peers import peer_name
from layered_llm.transport.zmq_socket import open_context

_KERNELS: Final[Mapping[str, Literal["auto", "simd", "torch"]]] = MappingProxyType(
    {"auto": "auto", "simd": "simd", "torch": "torch"}
)


def runtime_options(settings: Settings, checkpoint: Path) -> RuntimeOptions:
    """The operator's settings as the device's options."""
    cache = cache_directory(settings)
    return RuntimeOptions(
        device="scripted" if settings.device == "scripted" else "cpu",
        model=checkpoint,
        dtype=settings.dtype,
        num_pages=settings.num_pages,
        memory_ratio=settings.memory_ratio,
        page_size_tokens=settings.page_size,
        max_slots=settings.max_running_requests,
        context_override=settings.max_seq_len_override,
        threads=settings.threads,
        kernels=_KERNELS[settings.kernels],
        kernel_cache=None if cache is None else cache / "kernels",
        kv_dtype="float16" if settings.kv_dtype == "float16" else "float32",
        deterministic=settings.deterministic,
        script=ScriptOptions(
            name="hash" if settings.scripted_output == "hash" else "echo",
            first_id=ord("a"),
            id_count=26,
            step_us=round(settings.scripted_step_ms * 1000),
            token_us=round(settings.scripted_token_us),
        ),
    )


def monotonic_us() -> int:
    """The clock that steps are timed with."""
    return time.monotonic_ns() // 1000


def work_runtime(links: ZmqLinks, addresses: LinkAddresses, rank: int, settings: Settings, checkpoint: Path) -> None:
    """Loads the model and executes steps until the context is shut down (LinkClosed). Raises DeviceError."""
    with links.connect_blocking(SCHEDULER_RUNTIME, addresses.runtime, peer_name(Role.RUNTIME, rank)) as link:
        say_if_due = warm_up_words(link, monotonic_us)
        device = open_device(runtime_options(settings, checkpoint), now_us=monotonic_us, check=say_if_due)
        serve_device(device, link, pid=os.getpid(), answers=rank == ANSWERING_RANK)


def _work(arguments: EngineArguments) -> None:
    with open_context() as context:
        links = ZmqLinks(context, context)
        work_runtime(links, arguments.addresses, arguments.index, arguments.settings, arguments.checkpoint)


def main() -> None:
    """The process's entry."""
    run_engine_process(Role.RUNTIME, _work, expected=(DeviceError,))


if __name__ == "__main__":
    main()
