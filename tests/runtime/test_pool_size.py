from pathlib import Path
from typing import Any

import pytest

from layered_llm.runtime.cpu.pool_size import chosen_context, size_pool
from layered_llm.runtime.device.device import DeviceError
from support.runtime_options import make_options

MIB = 1 << 20


def pool(
    *, context_tokens: int = 8192, weight_bytes: int = 100 * MIB, free_bytes: int | None = 1000 * MIB, **changes: Any
) -> tuple[int, int]:
    """Pages and context."""
    options = make_options(Path(), **({"num_pages": None, "page_size_tokens": 16, "max_slots": 256} | changes))
    limits = size_pool(
        options,
        page_bytes=MIB,
        context_tokens=context_tokens,
        vocabulary_size=9,
        weight_bytes=weight_bytes,
        free_bytes=free_bytes,
    )
    return limits.pages, limits.context_tokens


@pytest.mark.parametrize(("ratio", "pages"), [(0.5, 322), (0.25, 161), (1.0, 644)])
def test_the_default_is_a_part_of_the_free_memory_and_caps_the_context(ratio: float, pages: int) -> None:
    assert (pages, min(8192, 16 * pages)) == pool(memory_ratio=ratio)


def test_the_default_is_no_more_than_all_slots_can_fill() -> None:
    assert (3 * 7, 100) == pool(context_tokens=100, max_slots=3)


@pytest.mark.parametrize(("slots", "pages"), [(256, 4 * 7), (2, 2 * 7)])
def test_the_default_is_four_full_contexts_where_the_memory_is_unknown(slots: int, pages: int) -> None:
    assert (pages, 100) == pool(context_tokens=100, max_slots=slots, free_bytes=None)


def test_a_named_size_is_taken_and_caps_the_context() -> None:
    assert (3, 48) == pool(num_pages=3)


def test_a_named_size_may_exceed_the_ratio() -> None:
    assert 644 == pool(num_pages=644, memory_ratio=0.1)[0]


def test_a_named_size_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(DeviceError, match=r"0\.63 GiB for 645 pages.*0\.10 GiB.*0\.98 GiB.*at most 644 pages fit"):
        pool(num_pages=645)


def test_weights_that_leave_no_page_are_refused() -> None:
    with pytest.raises(DeviceError, match="at most 0 pages fit"):
        pool(weight_bytes=900 * MIB)


def test_nothing_is_checked_where_the_memory_is_unknown() -> None:
    assert (1 << 20, 8192) == pool(num_pages=1 << 20, free_bytes=None)


@pytest.mark.parametrize(("override", "tokens"), [(None, 100), (100, 100), (1, 1)])
def test_a_context_may_be_shortened(override: int | None, tokens: int) -> None:
    assert tokens == chosen_context(100, override)


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(DeviceError, match="a context of 101 tokens was asked for, but the model's own is 100"):
        chosen_context(100, 101)
