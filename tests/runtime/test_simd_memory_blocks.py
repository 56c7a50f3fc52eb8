import numpy as np
import pytest

from layered_llm.runtime.cpu.simd.memory_blocks import GrowingBuffers, HugePages, address_of, aligned_words


def test_buffers_grow_together_by_a_half_and_stay_where_they_suffice() -> None:
    buffers = GrowingBuffers((3, 5))
    assert [True, False, True] == [buffers.hold(10), buffers.hold(9), buffers.hold(11)]
    assert [(15, 3), (15, 5)] == [matrix.shape for matrix in buffers.matrices]


def test_buffers_that_cannot_grow_hold_what_they_held() -> None:
    buffers = GrowingBuffers((1, 1 << 20))
    buffers.hold(2)
    with pytest.raises(MemoryError):
        buffers.hold(1 << 39)
    assert (2, [(2, 1), (2, 1 << 20)]) == (buffers.rows, [matrix.shape for matrix in buffers.matrices])


@pytest.mark.parametrize("count", [1, 8, 100])
def test_words_begin_a_cache_line(count: int) -> None:
    words = aligned_words(count)
    assert (0, [0] * count) == (address_of(words) % 64, words.tolist())


def test_arrays_of_huge_pages_begin_cache_lines_and_share_nothing() -> None:
    memory = HugePages(None)
    arrays = [memory.take(size_bytes) for size_bytes in (1, 64, 100, 40 << 20, 7)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [(1, {0}), (64, {1}), (100, {2}), (40 << 20, {3}), (7, {4})] == [
        (len(each), set(np.unique(each))) for each in arrays
    ]
    assert [0] * 5 == [address_of(array) % 64 for array in arrays]


def test_memory_that_cannot_be_had_is_told() -> None:
    with pytest.raises(MemoryError, match="bytes for weights"):
        HugePages(None).take(1 << 60)


def test_more_memory_than_is_free_is_not_touched() -> None:
    memory = HugePages(200)
    memory.take(100)
    with pytest.raises(MemoryError, match=r"the weights take more than the 0\.0 GiB of memory that are free"):
        memory.take(65)
