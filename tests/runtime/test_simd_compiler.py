import logging
from pathlib import Path

import attrs
import pytest

from layered_llm.runtime.simd.compiler import compile_program, load_program, program_key
from layered_llm.runtime.simd.machine import Machine
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
    others.append(attrs.evolve(machine, has_byte_products=not machine.has_byte_products))
    assert 5 == len({program_key(each) for each in (machine, machine, *others)})


def test_products_of_bytes_compile_for_processors_that_have_them_in_narrow_vectors_only() -> None:
    features = "+avx2,+fma,+f16c,+avxvnni"
    machine = Machine(processor="alderlake", features=features, lanes=8, registers=16, has_byte_products=True)
    assert compile_program(machine)
