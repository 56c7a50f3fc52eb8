from pathlib import Path

import pytest

from layered_llm.runtime.device import DeviceError
from layered_llm.runtime.memory import available_bytes
from layered_llm.runtime.pool_size import PoolSize, size_pool

MIB = 1 << 20


def pool(**changes: int | None) -> PoolSize:
    values: dict[str, int | None] = {
        "num_pages": None,
        "page_size_tokens": 16,
        "page_bytes": MIB,
        "context_tokens": 100,
        "weight_bytes": 100 * MIB,
        "free_bytes": 1000 * MIB,
    }
    return size_pool(**(values | changes))  # type: ignore[arg-type]  # a dict of mixed types


def test_the_default_is_four_full_contexts() -> None:
    assert PoolSize(pages=28, context_tokens=100) == pool()


def test_the_default_shrinks_to_half_of_what_is_free_and_caps_the_context() -> None:
    assert PoolSize(pages=322, context_tokens=5152) == pool(context_tokens=8192)


def test_a_named_size_is_taken_and_caps_the_context() -> None:
    assert PoolSize(pages=3, context_tokens=48) == pool(num_pages=3)


def test_a_named_size_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(DeviceError, match=r"0\.63 GiB for 645 pages.*0\.10 GiB.*0\.98 GiB.*at most 644 pages fit"):
        pool(num_pages=645)


def test_weights_that_leave_no_page_are_refused() -> None:
    with pytest.raises(DeviceError, match="at most 0 pages fit"):
        pool(weight_bytes=900 * MIB)


def test_nothing_is_checked_where_the_memory_is_unknown() -> None:
    assert PoolSize(pages=1 << 20, context_tokens=100) == pool(num_pages=1 << 20, free_bytes=None)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_free_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "5\n")
    assert 3000 * 1024 == available_bytes(tmp_path)


def test_a_control_groups_limit_counts_without_its_page_cache(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemAvailable: 3000 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "90000\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 30000\n")
    assert 40000 == available_bytes(tmp_path)


def test_free_memory_may_be_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
