"""Opens the CPU device: reads a model, sizes the KV pool.

Must not know: links, how steps are executed.
"""

import logging
from collections.abc import Callable
from typing import Final

import torch

from layered_llm.domain.limits import RuntimeLimits
from layered_llm.runtime.device import DeviceError, one_line
from layered_llm.runtime.kv_cache import KvCache, page_bytes
from layered_llm.runtime.memory import available_bytes
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.model_files import read_model
from layered_llm.runtime.models.registry import builder_of
from layered_llm.runtime.options import RuntimeOptions
from layered_llm.runtime.pool_size import PoolSize, chosen_context, size_pool
from layered_llm.runtime.torch_device import TorchDevice
from layered_llm.runtime.weights import CheckpointReader

_LOG: Final = logging.getLogger(__name__)
_FP32_BYTES: Final = 4


def open_torch_device(options: RuntimeOptions, *, now_us: Callable[[], int]) -> TorchDevice:
    """Raises DeviceError, with one line for the operator, where model, checkpoint or memory do not allow it."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        return _open(options, now_us)
    except (RuntimeError, MemoryError) as error:
        raise DeviceError(f"the model cannot be loaded: {one_line(error)}") from error


def _open(options: RuntimeOptions, now_us: Callable[[], int]) -> TorchDevice:
    files = read_model(options.model)
    config = files.config
    build = builder_of(config.architecture)
    reader = CheckpointReader.of(files.tensors(), dtype=options.dtype)
    pool = _size_pool(options, config, _FP32_BYTES * reader.parameters() + _head_copy_bytes(config))
    model = build(config, reader)
    reader.finish()
    _LOG.info(
        "%s on the CPU: weights %s, computed in float32 with %d threads; KV pool of %d pages of %d tokens",
        *(config.architecture, reader.types, torch.get_num_threads(), pool.pages, options.page_size_tokens),
    )
    return TorchDevice(
        model=model,
        cache=KvCache.allocate(config, pages=pool.pages, page_size_tokens=options.page_size_tokens),
        limits=RuntimeLimits(
            pages=pool.pages,
            page_size_tokens=options.page_size_tokens,
            slots=options.max_slots,
            context_tokens=pool.context_tokens,
            vocabulary_size=config.vocabulary_size,
        ),
        now_us=now_us,
    )


def _head_copy_bytes(config: ModelConfig) -> int:
    """A head that is tied to the embedding is packed beside it."""
    return _FP32_BYTES * config.vocabulary_size * config.hidden_size if config.tied_head else 0


def _size_pool(options: RuntimeOptions, config: ModelConfig, weight_bytes: int) -> PoolSize:
    wish = options.pool_wish(
        page_bytes=page_bytes(config, options.page_size_tokens),
        context_tokens=chosen_context(config.context_tokens, options.context_override),
    )
    pool = size_pool(wish, weight_bytes=weight_bytes, free_bytes=available_bytes())
    if pool.context_tokens < wish.context_tokens:
        _LOG.warning("the KV pool holds %d of the context's %d tokens", pool.context_tokens, wish.context_tokens)
    return pool
