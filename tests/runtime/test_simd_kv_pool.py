import ctypes
import mmap
from pathlib import Path
from typing import Final

import pytest

from layered_llm.runtime.cpu.simd.kv_pool import KvPool
from layered_llm.runtime.models.model_config import ModelConfig
from layered_llm.runtime.models.registry import FAMILIES

LAYERS: Final = 8
PAGES: Final = 4096


def config() -> ModelConfig:
    return FAMILIES["llama"].parse(
        {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "vocab_size": 100,
        }
    )


def anonymous_bytes() -> int:
    """That this process holds and no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def test_a_token_costs_its_own_page_of_each_layer() -> None:
    pool = KvPool.allocate(config(), pages=PAGES, page_size_tokens=16, dtype="float32")
    before = anonymous_bytes()
    for layer in range(LAYERS):
        ctypes.memset(pool.address + layer * pool.layer_bytes, 1, 64)
    assert anonymous_bytes() - before < 4 * LAYERS * mmap.PAGESIZE


@pytest.mark.parametrize(("dtype", "number_bytes"), [("float32", 4), ("float16", 2)])
def test_layers_lie_one_behind_the_other(dtype: str, number_bytes: int) -> None:
    pool = KvPool.allocate(config(), pages=PAGES, page_size_tokens=16, dtype=dtype)
    assert (number_bytes, PAGES * 4 * 2 * 16 * 16 * number_bytes, 16) == (
        pool.number_bytes,
        pool.layer_bytes,
        pool.page_size_tokens,
    )


@pytest.mark.parametrize("pages", [1 << 38, 1 << 62])
def test_a_pool_beyond_all_memory_is_refused(pages: int) -> None:
    with pytest.raises(MemoryError, match="a KV pool of"):
        KvPool.allocate(config(), pages=pages, page_size_tokens=16, dtype="float32")
