"""Cores that the platform grants, over trees of files as the kernel shows them."""

import os
from pathlib import Path

import pytest

from layered_llm.runtime.cpu.process_limits import available_cores

V2 = "sys/fs/cgroup"
NESTED = "0::/system.slice/llm.service\n"
GARBAGE = [
    "",
    "\n",
    "max",
    "max 100000\n",
    "-1 100000",
    "x y",
    "100000 0",
    "100000 100000 100000",
    "\N{BULLET} 1",
    "1e5 1e5",
]


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def write_v1(root: Path, group: str, quota_us: str, period_us: str = "100000") -> None:
    write(root, f"{group}/cpu.cfs_quota_us", f"{quota_us}\n")
    write(root, f"{group}/cpu.cfs_period_us", f"{period_us}\n")


def write_mounts(root: Path, *mounts: str) -> None:
    write(root, "proc/self/mountinfo", "".join(f"{30 + at} 23 0:28 {mount}\n" for at, mount in enumerate(mounts)))


def test_without_groups_it_is_where_the_process_may_run(tmp_path: Path) -> None:
    assert 6 == available_cores(tmp_path, 6)


def test_the_kernel_is_asked_where_the_process_may_run(tmp_path: Path) -> None:
    assert len(os.sched_getaffinity(0)) == available_cores(tmp_path)


@pytest.mark.parametrize("group", ["system.slice/llm.service", "system.slice", "."])
def test_a_quota_of_version_2_counts_wherever_it_is_above_the_process(group: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", NESTED)
    write(tmp_path, f"{V2}/{group}/cpu.max", "200000 100000\n")
    assert 2 == available_cores(tmp_path, 8)


@pytest.mark.parametrize("name", [b"caf\xc3\xa9", b"caf\xe9", b"a\xe2\x80\xa8b", b"a:b", b"a b"])
def test_a_group_may_have_any_name(name: bytes, tmp_path: Path) -> None:
    write(tmp_path, f"{V2}/{os.fsdecode(name)}/cpu.max", "100000 100000\n")
    write(tmp_path, "proc/self/cgroup", "")
    (tmp_path / "proc/self/cgroup").write_bytes(b"0::/" + name + b"\n")
    assert 1 == available_cores(tmp_path, allowed=8)


@pytest.mark.parametrize("narrow", ["system.slice", "system.slice/llm.service"])
def test_the_narrowest_quota_counts(narrow: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", NESTED)
    for group in ("system.slice", "system.slice/llm.service"):
        write(tmp_path, f"{V2}/{group}/cpu.max", "100000 100000" if group == narrow else "700000 100000")
    assert 1 == available_cores(tmp_path, 8)


def test_a_quota_beside_the_process_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", NESTED)
    write(tmp_path, f"{V2}/system.slice/other.service/cpu.max", "100000 100000")
    assert 8 == available_cores(tmp_path, 8)


@pytest.mark.parametrize("group", ["box/inner", "box", "."])
@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_a_quota_of_version_1_counts_wherever_it_is_above_the_process(controllers: str, group: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", f"9:memory:/m\n4:{controllers}:/box/inner\n")
    write_v1(tmp_path, f"sys/fs/cgroup/cpu/{group}", "100000")
    assert 1 == available_cores(tmp_path, 8)


def test_a_version_1_group_without_a_limit_has_a_quota_of_minus_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpu:/box\n")
    write_v1(tmp_path, "sys/fs/cgroup/cpu/box", "-1")
    assert 8 == available_cores(tmp_path, 8)


def test_the_group_of_another_controller_says_nothing_of_cores(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpuset:/box\n")
    write_v1(tmp_path, "sys/fs/cgroup/cpu/box", "100000")
    assert 8 == available_cores(tmp_path, 8)


@pytest.mark.parametrize(
    ("quota_us", "expected"), [(1, 1), (50_000, 1), (100_000, 1), (150_000, 1), (199_999, 1), (250_000, 2), (900_000, 8)]
)
def test_a_part_of_a_core_is_left_to_other_processes(quota_us: int, expected: int, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, f"{V2}/cpu.max", f"{quota_us} 100000\n")
    assert expected == available_cores(tmp_path, 8)


@pytest.mark.parametrize("text", GARBAGE)
def test_what_is_no_quota_limits_nothing(text: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n4:cpu:/\n")
    write(tmp_path, f"{V2}/cpu.max", text)
    write_v1(tmp_path, "sys/fs/cgroup/cpu", text, text)
    assert 8 == available_cores(tmp_path, 8)


@pytest.mark.parametrize("file", ["cgroup", "mountinfo"])
@pytest.mark.parametrize(
    "text", ["\n", "0\n", ":::\n", "0::\n", " - \n", "a b c d e f - cgroup2\n", "1 2 3 4 - 5\n", "\N{BULLET}"]
)
def test_garbage_about_groups_is_survived(text: str, file: str, tmp_path: Path) -> None:
    write(tmp_path, f"proc/self/{file}", text)
    assert 8 == available_cores(tmp_path, 8)


def test_on_a_machine_with_both_versions_each_controller_is_in_its_own(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "2:cpu,cpuacct:/a\n0::/b\n")
    write_mounts(
        tmp_path,
        "/ /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate",
        "/ /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct",
    )
    write_v1(tmp_path, "sys/fs/cgroup/cpu,cpuacct/a", "300000")
    assert 3 == available_cores(tmp_path, 8)


@pytest.mark.parametrize("place", ["cgroup2", "opt/my\\040groups"])
def test_groups_may_be_mounted_elsewhere(place: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a\n")
    write_mounts(tmp_path, f"/ /{place} rw - cgroup2 none rw")
    write(tmp_path, f"{place}/a/cpu.max".replace("\\040", " "), "100000 100000")
    assert 1 == available_cores(tmp_path, 8)


def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path) -> None:
    """Version 1 without a namespace of its own: the process's group is named from the host's root."""
    write(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n")
    write_mounts(tmp_path, "/docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct")
    write_v1(tmp_path, "sys/fs/cgroup/cpu,cpuacct", "200000")
    assert 2 == available_cores(tmp_path, 8)


def test_a_group_below_a_containers_own_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpu:/docker/abc/inner\n")
    write_mounts(tmp_path, "/docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu")
    write_v1(tmp_path, "sys/fs/cgroup/cpu/inner", "200000")
    assert 2 == available_cores(tmp_path, 8)


def test_a_process_outside_of_its_namespace_is_limited_by_what_is_mounted(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/../other\n")
    write_mounts(tmp_path, "/.. /sys/fs/cgroup rw - cgroup2 cgroup rw")
    write(tmp_path, f"{V2}/cpu.max", "100000 100000")
    write(tmp_path, "sys/fs/other/cpu.max", "700000 100000")
    assert 1 == available_cores(tmp_path, 8)


def test_a_mount_of_another_namespace_is_read_where_it_is(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write_mounts(tmp_path, "/docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw")
    write(tmp_path, f"{V2}/cpu.max", "100000 100000")
    assert 1 == available_cores(tmp_path, 8)
