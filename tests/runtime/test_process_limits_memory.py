from pathlib import Path

import pytest

from layered_llm.runtime.cpu.process_limits import available_bytes

V2, V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def write_group(root: Path, place: str, limit: str, used: int, droppable: int = 0) -> None:
    """A group of version 2."""
    write(root, f"{place}/memory.max", f"{limit}\n")
    write(root, f"{place}/memory.current", f"{used}\n")
    write(root, f"{place}/memory.stat", f"anon 5\ninactive_file {droppable}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 4000 kB\nMemAvailable:    3000 kB\n")
    return tmp_path


def test_free_memory_is_what_the_kernel_says(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, V2, "max", 5)
    assert 3000 * 1024 == available_bytes(root)


def test_a_control_groups_limit_counts_without_its_page_cache(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, V2, "100000", 90000, 30000)
    assert 40000 == available_bytes(root)


@pytest.mark.parametrize("narrow", ["a", "a/b", "a/b/c"])
def test_the_narrowest_group_around_the_process_counts(narrow: str, root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a/b/c\n")
    for group in ("a", "a/b", "a/b/c"):
        write_group(root, f"{V2}/{group}", "700" if group == narrow else "90000", 100)
    assert 600 == available_bytes(root)


def test_groups_beside_the_process_do_not_count(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a\n")
    write_group(root, f"{V2}/other", "7", 0)
    assert 3000 * 1024 == available_bytes(root)


@pytest.mark.parametrize("place", [f"{V1}/box", V1])
def test_groups_of_version_1_count_too(place: str, root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/box\n0::/\n")
    write(root, f"{place}/memory.limit_in_bytes", "5000\n")
    write(root, f"{place}/memory.usage_in_bytes", "4000\n")
    write(root, f"{place}/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n")
    assert 1500 == available_bytes(root)


def test_a_group_that_is_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, V2, "10", 20)
    assert 0 == available_bytes(root)


def test_free_memory_may_be_unknown(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None


def test_what_a_group_is_slowed_down_at_is_a_limit_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, V2, "max", 5)
    write(root, f"{V2}/memory.high", "1005\n")
    assert 1000 == available_bytes(root)


def test_groups_that_are_mounted_elsewhere_count(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:memory:/docker/abc\n")
    write(root, "proc/self/mountinfo", "35 31 0:32 /docker/abc /cg/mem ro - cgroup cgroup rw,memory\n")
    write(root, "cg/mem/memory.limit_in_bytes", "5000\n")
    write(root, "cg/mem/memory.usage_in_bytes", "4000\n")
    assert 1000 == available_bytes(root)


def test_the_address_space_is_limited_less_what_is_mapped(root: Path) -> None:
    write(root, "proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax address space         20480  unlimited  bytes\n")
    write(root, "proc/self/status", "Name:\tx\nVmSize:\t    12 kB\n")
    assert 8192 == available_bytes(root)


def test_an_unlimited_address_space_says_nothing(root: Path) -> None:
    write(root, "proc/self/limits", "Max address space         unlimited  unlimited  bytes\n")
    write(root, "proc/self/status", "VmSize:\t    12 kB\n")
    assert 3000 * 1024 == available_bytes(root)


@pytest.mark.parametrize("text", ["", "max", "-1", "1.5", "\N{BULLET}", "many words"])
def test_what_is_no_limit_limits_nothing(text: str, root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, V2, "max", 5)
    write(root, f"{V2}/memory.max", text)
    write(root, f"{V2}/memory.high", text)
    assert 3000 * 1024 == available_bytes(root)
