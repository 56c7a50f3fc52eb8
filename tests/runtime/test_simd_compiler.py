import logging
from pathlib import Path

import attrs
import pytest

from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.cpu.simd.compiler import compile_piece, load_program, piece_key
from layered_llm.runtime.cpu.simd.kernels.machine import Machine
from layered_llm.runtime.cpu.simd.step_kernels import Needs
from layered_llm.runtime.cpu.simd.step_program import program_pieces
from support.simd_kernels import this_machine

NEEDS = Needs(formats=frozenset({WeightFormat.Q4_1}), kv_number_bytes=4)
EVERYTHING = Needs(formats=frozenset(WeightFormat), kv_number_bytes=4)


def compiled(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Pieces that were compiled since the last call."""
    names = [message.split()[1].rstrip(",") for message in caplog.messages if message.startswith("compiled ")]
    caplog.clear()
    return names


def test_compiled_pieces_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_program(this_machine(), NEEDS, tmp_path / "kernels")
        first = compiled(caplog)
        load_program(this_machine(), NEEDS, tmp_path / "kernels")
    assert (["linear_Q4_1", "attend_f32", "steps_Q4_1_kv4"], []) == (first, compiled(caplog))


def test_another_model_shares_the_pieces_that_it_needs_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = attrs.evolve(NEEDS, formats=NEEDS.formats | {WeightFormat.Q8_0})
    with caplog.at_level(logging.INFO):
        load_program(this_machine(), NEEDS, tmp_path / "kernels")
        compiled(caplog)
        load_program(this_machine(), both, tmp_path / "kernels")
    assert ["linear_Q8_0", "steps_Q8_0_Q4_1_kv4"] == compiled(caplog)


def test_progress_says_how_many_pieces_there_are_and_once_that_none_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.INFO):
        load_program(this_machine(), NEEDS, tmp_path / "file" / "kernels")
    assert "compiled attend_f32, 2 of 3" in caplog.messages
    assert 1 == sum("cannot be kept" in message for message in caplog.messages)


def test_needs_are_met_by_a_program_of_more_formats_and_the_same_kv_numbers() -> None:
    more, halves = EVERYTHING, attrs.evolve(NEEDS, kv_number_bytes=2)
    assert [True, True, False, False] == [
        NEEDS.are_met_by(NEEDS),
        NEEDS.are_met_by(more),
        more.are_met_by(NEEDS),
        NEEDS.are_met_by(halves),
    ]


def test_another_processor_has_pieces_of_its_own() -> None:
    machine = this_machine()
    others = [attrs.evolve(machine, processor="other"), attrs.evolve(machine, features=machine.features + ",")]
    others.append(attrs.evolve(machine, lanes=machine.lanes * 2))
    others.append(attrs.evolve(machine, has_byte_products=not machine.has_byte_products))
    assert 5 == len({piece_key(each, "steps") for each in (machine, machine, *others)})


def test_each_piece_has_a_key_of_its_own() -> None:
    names = [*program_pieces(EVERYTHING), *program_pieces(attrs.evolve(EVERYTHING, kv_number_bytes=2)), *program_pieces(NEEDS)]
    assert len(set(names)) == len({piece_key(this_machine(), name) for name in names})


def test_products_of_bytes_compile_for_processors_that_have_them_in_narrow_vectors_only() -> None:
    features = "+avx2,+fma,+f16c,+avxvnni"
    machine = Machine(processor="alderlake", features=features, lanes=8, registers=16, has_byte_products=True)
    assert all(compile_piece(machine, define) for define in program_pieces(EVERYTHING).values())


class NotWanted(Exception):  # noqa: N818 - no error
    pass


def test_a_compilation_that_is_given_up_ends_with_the_piece_under_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        if list((tmp_path / "kernels").glob("*")):
            raise NotWanted

    with caplog.at_level(logging.INFO), pytest.raises(NotWanted):
        load_program(this_machine(), NEEDS, tmp_path / "kernels", check)
    assert ["linear_Q4_1"] == compiled(caplog)
