"""Opens the CPU device: reads a model, sizes the KV pool, chooses what executes it.

Must not know: links, how steps are executed.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, assert_never

from layered_llm.runtime.checkpoint.matrices import WeightMatrix
from layered_llm.runtime.checkpoint.panels import Matrix, in_panels
from layered_llm.runtime.checkpoint.weights import CheckpointReader, as_it_is
from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.cpu.pool_size import bytes_of_page, chosen_context, size_pool
from layered_llm.runtime.cpu.process_limits import available_bytes, available_cores
from layered_llm.runtime.cpu.simd.compiler import load_program
from layered_llm.runtime.cpu.simd.crew import Crew
from layered_llm.runtime.cpu.simd.decoder import SimdDecoder, needs_of
from layered_llm.runtime.cpu.simd.kernels.machine import Machine
from layered_llm.runtime.cpu.simd.kv_pool import KvPool
from layered_llm.runtime.cpu.simd.memory_blocks import HugePages
from layered_llm.runtime.cpu.simd.support import find_support, panels_for
from layered_llm.runtime.device.device import DeviceError, go_on, one_line
from layered_llm.runtime.device.options import RuntimeOptions
from layered_llm.runtime.device.step_model import StepModel
from layered_llm.runtime.models.decoder_weights import DecoderWeights
from layered_llm.runtime.models.model_config import ModelConfig, refuse_layers
from layered_llm.runtime.models.model_files import ModelFiles, read_model

_LOG: Final = logging.getLogger(__name__)


def open_cpu_device(options: RuntimeOptions, *, now_us: Callable[[], int], check: Callable[[], None] = go_on) -> CpuDevice:
    """Raises DeviceError, with one line for the operator, where model, checkpoint or memory do not allow it."""
    try:
        return _open(options, now_us, check)
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(f"the model cannot be loaded: {one_line(error)}") from error


def _open(options: RuntimeOptions, now_us: Callable[[], int], check: Callable[[], None]) -> CpuDevice:
    free_bytes = available_bytes()
    files = read_model(options.model)
    config = files.config
    context_tokens = chosen_context(config.context_tokens, options.context_override)
    refuse_layers(config, context_tokens)
    machine = _find_machine(options, config)
    arrange = as_it_is if machine is None else partial(in_panels, layout=panels_for(machine), room=HugePages(free_bytes).take)
    weights, types = _read(files, options.dtype, partial(_arranged, arrange, check))
    limits = size_pool(
        options,
        page_bytes=bytes_of_page(config, options.page_size_tokens, options.kv_dtype),
        context_tokens=context_tokens,
        vocabulary_size=config.vocabulary_size,
        weight_bytes=weights.expanded_bytes if machine is None else weights.stored_bytes,
        free_bytes=free_bytes,
    )
    if limits.context_tokens < context_tokens:
        _LOG.warning("the KV pool holds %d of the context's %d tokens", limits.context_tokens, context_tokens)
    if machine is None:
        model, computed = _torch_model(options, weights, limits.pages, check)
    else:
        model, computed = _simd_model(options, weights, limits.pages, machine, check)
    _LOG.info(
        "%s on the CPU: weights %s, computed in float32 by %s; KV pool of %d pages of %d tokens, %s",
        *(config.architecture, types, computed, limits.pages, options.page_size_tokens, options.kv_dtype),
    )
    return CpuDevice(model=model, limits=limits, now_us=now_us)


def _read(files: ModelFiles, dtype: str, arrange: Callable[[WeightMatrix], Matrix]) -> tuple[DecoderWeights, str]:
    """The weights, and in words which types they have."""
    reader = CheckpointReader.of(files.tensors(), dtype=dtype, arrange=arrange)
    weights = files.family.build(files.config, reader)
    reader.finish()
    return weights, reader.types


def _arranged(arrange: Callable[[WeightMatrix], Matrix], check: Callable[[], None], matrix: WeightMatrix) -> Matrix:
    check()
    return arrange(matrix)


def _find_machine(options: RuntimeOptions, config: ModelConfig) -> Machine | None:
    """What the generated kernels are for, or None where torch executes the model.

    Raises DeviceError where that is not what the options ask for.
    """
    match options.kernels:
        case "torch":
            found: Machine | str = "torch was asked for"
        case "simd" | "auto":
            found = find_support(config)
        case _:
            assert_never(options.kernels)
    if isinstance(found, Machine):
        return found
    for wish, is_wished in (
        ("kernels=simd", options.kernels == "simd"),
        ("kv_dtype=float16", options.kv_dtype != "float32"),
        ("deterministic", options.deterministic),
    ):
        if is_wished:
            raise DeviceError(f"{wish} needs the generated kernels, which cannot be used: {found}")
    _LOG.info("torch executes the model, without generated kernels: %s", found)
    return None


def _simd_model(
    options: RuntimeOptions, weights: DecoderWeights, pages: int, machine: Machine, check: Callable[[], None]
) -> tuple[StepModel, str]:
    pool = KvPool.allocate(weights.config, pages=pages, page_size_tokens=options.page_size_tokens, dtype=options.kv_dtype)
    program = load_program(machine, needs_of(weights, pool), options.kernel_cache, check)
    crew = Crew(program, threads=options.threads or available_cores())
    return SimdDecoder(weights, pool, crew), f"generated kernels for {machine.processor} with {crew.threads} threads"


def _torch_model(
    options: RuntimeOptions, weights: DecoderWeights, pages: int, check: Callable[[], None]
) -> tuple[StepModel, str]:
    """Raises DeviceError where torch is not installed."""
    try:
        from layered_llm.runtime.cpu.torch_decoder import open_decoder  # noqa: PLC0415 - generated kernels need no torch
    except ModuleNotFoundError as error:
        raise DeviceError(f"torch computes it, and cannot be imported ({error}): pip install 'layered-llm[torch]'") from error
    threads = options.threads or available_cores()
    model = open_decoder(weights, pages=pages, page_size_tokens=options.page_size_tokens, threads=threads, check=check)
    return model, f"torch with {threads} threads"
