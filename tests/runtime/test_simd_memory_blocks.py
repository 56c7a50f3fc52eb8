import pytest

from layered_llm.runtime.simd.memory_blocks import GrowingBuffers, address_of, aligned_words


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
