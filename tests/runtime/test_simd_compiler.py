import logging
from pathlib import Path

import attrs
import pytest

from layered_llm.runtime.simd.compiler import load_program
from layered_llm.runtime.simd.machine import Machine
from support.simd_kernels import this_machine


def load(machine: Machine, cache: Path, caplog: pytest.LogCaptureFixture) -> int:
    """How often loading had to compile."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        load_program(machine, cache)
    return sum("compiling" in message for message in caplog.messages)


def test_a_compiled_program_is_read_again_unless_it_is_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = tmp_path / "kernels"
    assert [1, 0] == [load(this_machine(), cache, caplog) for _ in range(2)]
    (entry,) = cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1])
    assert [1, 0] == [load(this_machine(), cache, caplog) for _ in range(2)]
    assert [entry] == list(cache.iterdir())


def test_another_processor_has_a_program_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = attrs.evolve(this_machine(), registers=16, features=this_machine().features + ",")
    assert 1 == load(other, tmp_path, caplog)
    (entry,) = tmp_path.iterdir()
    renamed = load(attrs.evolve(other, features=other.features + ","), tmp_path, caplog)
    assert (1, True) == (renamed, entry.exists())


def test_a_cache_that_cannot_be_written_costs_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert 1 == load(this_machine(), tmp_path / "file" / "kernels", caplog)
    assert any("cannot be kept" in message for message in caplog.messages)
