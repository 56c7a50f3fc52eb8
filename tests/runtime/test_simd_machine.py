import pytest

from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, byte_panels
from layered_llm.runtime.cpu.simd.kernels.machine import Machine, machine_of
from layered_llm.runtime.cpu.simd.support import panels_for

FEATURES = {"avx2": True, "fma": True, "f16c": True, "sse2": True}
WIDE = {"avx512f": True, "avx512vl": True, "avx512bw": True, "avx512dq": True}


@pytest.mark.parametrize(
    ("features", "lanes", "registers"),
    [({}, 8, 16), (WIDE, 16, 32), *[(WIDE | {name: False}, 8, 16) for name in WIDE]],
    ids=["AVX2", "AVX-512", *(f"without {name}" for name in WIDE)],
)
def test_vectors_are_as_wide_as_the_machine_allows(features: dict[str, bool], lanes: int, registers: int) -> None:
    machine = machine_of("znver4", FEATURES | features)
    assert isinstance(machine, Machine)
    assert ("znver4", lanes, registers) == (machine.processor, machine.lanes, machine.registers)
    assert "+f16c,+fma,+sse2" in machine.features


@pytest.mark.parametrize(
    ("features", "has_byte_products"),
    [
        ({}, False),
        ({"avxvnni": True}, True),
        ({"avx512vnni": True}, False),
        (WIDE, False),
        (WIDE | {"avxvnni": True}, False),
        (WIDE | {"avx512vnni": True}, True),
    ],
    ids=["AVX2", "AVX-VNNI", "its wide form alone", "AVX-512", "AVX-512 and AVX-VNNI", "AVX-512 VNNI"],
)
def test_bytes_are_multiplied_where_vectors_of_this_size_can(features: dict[str, bool], has_byte_products: bool) -> None:
    machine = machine_of("znver4", FEATURES | features)
    assert isinstance(machine, Machine)
    assert has_byte_products == machine.has_byte_products
    assert (FLOAT_PANELS, byte_panels(machine.lanes))[has_byte_products] == panels_for(machine)


@pytest.mark.parametrize("lacking", ["avx2", "fma", "f16c"])
def test_a_processor_that_lacks_an_instruction_set_is_told_so(lacking: str) -> None:
    absent = {name: is_there for name, is_there in FEATURES.items() if name != lacking}
    told = f"the processor lacks {lacking}"
    assert [told, told] == [machine_of("old", FEATURES | {lacking: False}), machine_of("old", absent)]
