from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layered_llm.runtime.cpu.simd.kernels.attention import scratch_bytes
from layered_llm.runtime.device.step_inputs import Float32s
from support.simd_kernels import LANES, kernels

pytestmark = pytest.mark.parametrize("lanes", LANES)
Pool = NDArray[Any]
"""[pages, kv_heads, keys or values, page_size, head_dim]."""


def random_pool(rng: np.random.Generator, positions: int, page_size: int, head_dim: int, dtype: str) -> tuple[Pool, Any]:
    """A pool of two heads, and a page table of pages in no order; what no position uses is not a number."""
    pages = -(-positions // page_size)
    pool = np.full((pages + 3, 2, 2, page_size, head_dim), np.nan, np.dtype(dtype))
    table = rng.permutation(pages + 3)[:pages].astype(np.int32)
    for position in range(positions):
        cell = pool[table[position // page_size], :, :, position % page_size]
        cell[:] = rng.normal(0, 1, cell.shape)
    return pool, table


def attend(lanes: int, pool: Pool, table: Any, queries: Float32s, start: int, *, head: int) -> Float32s:
    """Queries [tokens, group, head_dim], by the kernel."""
    tokens, group, head_dim = queries.shape
    target = np.full((tokens, group, head_dim), np.nan, np.float32)
    scratch = np.full(scratch_bytes(tokens * group, head_dim), 255, np.uint8)
    pages = (pool[0, head], pool.strides[0], pool.shape[3])
    name = "attend_f32" if pool.dtype == np.float32 else "attend_f16"
    kernels(lanes)(name, queries, tokens, group, head_dim, start, table, *pages, target, target.strides[0], scratch)
    return target


def reference(pool: Pool, table: Any, queries: Float32s, start: int, head: int) -> NDArray[np.float64]:
    page_size = pool.shape[3]
    result = np.empty(queries.shape, np.float64)
    for token in range(len(queries)):
        positions = np.arange(start + token + 1)
        cells = pool[table[positions // page_size], head, :, positions % page_size].astype(np.float64)
        scores = queries[token].astype(np.float64) @ cells[:, 0].T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        result[token] = weights / weights.sum(axis=1, keepdims=True) @ cells[:, 1]
    return result


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("page_size", [1, 7, 16, 100])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (2, 16), (3, 64), (4, 80), (7, 24), (5, 48), (8, 128)])
def test_attention_is_that_of_the_reference(lanes: int, group: int, head_dim: int, page_size: int, dtype: str) -> None:
    if head_dim % lanes:
        pytest.skip("heads of this size are left to narrow vectors")
    rng = np.random.default_rng(group)
    for start, tokens in [(0, 1), (0, 5), (62, 1), (63, 1), (64, 1), (60, 9), (150, 16), (200, 1)]:
        pool, table = random_pool(rng, start + tokens, page_size, head_dim, dtype)
        queries = rng.normal(0, 0.3, (tokens, group, head_dim)).astype(np.float32)
        expected = reference(pool, table, queries, start, head=1)
        assert 3e-6 > np.abs(attend(lanes, pool, table, queries, start, head=1) - expected).max()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (2, 80), (3, 64), (5, 48)])
def test_a_tokens_result_never_depends_on_the_tokens_beside_it(lanes: int, group: int, head_dim: int, dtype: str) -> None:
    rng = np.random.default_rng(3)
    pool, table = random_pool(rng, 140, 16, head_dim, dtype)
    queries = rng.normal(0, 1, (16, group, head_dim)).astype(np.float32)
    together = attend(lanes, pool, table, queries, 120, head=0)
    alone = [attend(lanes, pool, table, queries[token : token + 1], 120 + token, head=0)[0] for token in range(16)]
    assert together.tobytes() == np.stack(alone).tobytes()


def test_scores_far_apart_do_not_overflow(lanes: int) -> None:
    rng = np.random.default_rng(4)
    pool, table = random_pool(rng, 130, 16, 16, "float32")
    queries = (1000 * rng.normal(0, 1, (1, 2, 16))).astype(np.float32)
    assert 1e-3 > np.abs(attend(lanes, pool, table, queries, 129, head=0) - reference(pool, table, queries, 129, head=0)).max()


def test_a_query_that_is_not_a_number_stays_none(lanes: int) -> None:
    pool, table = random_pool(np.random.default_rng(5), 10, 16, 16, "float32")
    queries = np.full((1, 1, 16), np.nan, np.float32)
    assert np.isnan(attend(lanes, pool, table, queries, 9, head=0)).all()
