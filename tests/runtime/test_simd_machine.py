import pytest

from layered_llm.runtime.simd.machine import Machine, machine_of

FEATURES = {"avx2": True, "fma": True, "f16c": True, "avx512vl": False, "sse2": True}


@pytest.mark.parametrize(("has_avx512", "registers"), [(False, 16), (True, 32)])
def test_a_machine_has_as_many_registers_as_its_vectors(has_avx512: bool, registers: int) -> None:
    machine = machine_of("znver3", FEATURES | {"avx512vl": has_avx512})
    assert isinstance(machine, Machine)
    assert ("znver3", registers, True) == (machine.processor, machine.registers, "+f16c,+fma,+sse2" in machine.features)


@pytest.mark.parametrize("lacking", ["avx2", "fma", "f16c"])
def test_a_processor_that_lacks_an_instruction_set_is_told_so(lacking: str) -> None:
    absent = {name: is_there for name, is_there in FEATURES.items() if name != lacking}
    told = f"the processor lacks {lacking}"
    assert [told, told] == [machine_of("old", FEATURES | {lacking: False}), machine_of("old", absent)]
