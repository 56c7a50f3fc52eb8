import logging
from pathlib import Path

import attrs
import pytest

from layered_llm.runtime.simd.compiler import load_program, program_key
from support.simd_kernels import this_machine


def test_a_compiled_program_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_program(this_machine(), tmp_path / "kernels")
        load_program(this_machine(), tmp_path / "kernels")
    assert 1 == sum("compiling" in message for message in caplog.messages)


def test_another_processor_has_a_program_of_its_own() -> None:
    machine = this_machine()
    others = [attrs.evolve(machine, processor="other"), attrs.evolve(machine, features=machine.features + ",")]
    others.append(attrs.evolve(machine, lanes=machine.lanes * 2))
    assert 4 == len({program_key(each) for each in (machine, machine, *others)})
