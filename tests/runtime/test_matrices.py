import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import WeightFormat, WeightMatrix, encoded, merged
from layered_llm.runtime.device.step_inputs import Float32s

TYPES = {
    WeightFormat.F32: Type.F32,
    WeightFormat.BF16: Type.BF16,
    WeightFormat.F16: Type.F16,
    WeightFormat.Q8_0: Type.Q8_0,
    WeightFormat.Q4_0: Type.Q4_0,
    WeightFormat.Q4_1: Type.Q4_1,
}
formats = st.sampled_from(list(WeightFormat))


def random_values(seed: int, rows: int, columns: int) -> Float32s:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-4, 4, size=(rows, 1))).astype(np.float32)


def matrix_of(values: Float32s, weight_format: WeightFormat) -> WeightMatrix:
    """As the library's own writer quantizes it."""
    data = gguf.quantize(values, TYPES[weight_format]).view(np.uint8)
    return WeightMatrix(format=weight_format, rows=values.shape[0], columns=values.shape[1], data=data)


@given(formats, st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4))
def test_every_format_means_what_the_gguf_library_says(weight_format: WeightFormat, seed: int, rows: int, blocks: int) -> None:
    matrix = matrix_of(random_values(seed, rows, 32 * blocks), weight_format)
    expected = gguf.dequantize(matrix.data, TYPES[weight_format])
    assert np.array_equal(expected.reshape(rows, 32 * blocks), matrix.dequantized())


@pytest.mark.parametrize("weight_format", list(WeightFormat))
def test_a_matrix_may_begin_at_any_byte(weight_format: WeightFormat) -> None:
    matrix = matrix_of(random_values(0, 3, 64), weight_format)
    memory = np.concatenate((np.zeros(1, np.uint8), matrix.data.reshape(-1)))
    shifted = WeightMatrix(format=weight_format, rows=3, columns=64, data=memory[1:].reshape(matrix.data.shape))
    assert np.array_equal(matrix.dequantized(), shifted.dequantized())


@pytest.mark.parametrize("weight_format", list(WeightFormat))
def test_the_numbers_are_not_those_in_the_file(weight_format: WeightFormat) -> None:
    matrix = matrix_of(random_values(0, 2, 32), weight_format)
    before = matrix.data.copy()
    matrix.dequantized()[:] = 0
    assert np.array_equal(before, matrix.data)


@given(formats, st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_merged_rows_are_those_of_the_parts(weight_format: WeightFormat, seed: int, rows: list[int]) -> None:
    parts = [matrix_of(random_values(seed + number, count, 32), weight_format) for number, count in enumerate(rows)]
    whole = merged(parts)
    assert np.array_equal(np.concatenate([part.dequantized() for part in parts]), whole.dequantized())
    assert sum(rows) == whole.rows


def test_one_matrix_is_not_copied_to_be_merged() -> None:
    matrix = matrix_of(random_values(0, 2, 32), WeightFormat.Q4_1)
    assert matrix is merged([matrix])


@pytest.mark.parametrize(("weight_format", "columns"), [(WeightFormat.F16, 32), (WeightFormat.F32, 64)])
def test_what_is_not_alike_is_not_merged(weight_format: WeightFormat, columns: int) -> None:
    with pytest.raises(InvariantViolated):
        merged([matrix_of(random_values(0, 2, 32), WeightFormat.F32), matrix_of(random_values(0, 2, columns), weight_format)])


@given(formats, st.permutations(range(6)))
def test_rows_come_in_the_order_asked_for(weight_format: WeightFormat, order: list[int]) -> None:
    matrix = matrix_of(random_values(1, 6, 64), weight_format)
    assert np.array_equal(matrix.dequantized()[order], matrix.with_rows(np.array(order)).dequantized())


@pytest.mark.parametrize("shape", [(2, 33), (1, 34), (2, 68)])
def test_bytes_that_are_not_the_matrix_are_a_fault(shape: tuple[int, int]) -> None:
    with pytest.raises(InvariantViolated):
        WeightMatrix(format=WeightFormat.Q8_0, rows=2, columns=32, data=np.zeros(shape, np.uint8))


@given(st.sampled_from([WeightFormat.F32, WeightFormat.F16]), st.integers(0, 2**32))
def test_encoded_numbers_are_those_of_the_gguf_library(weight_format: WeightFormat, seed: int) -> None:
    values = random_values(seed, 3, 64)
    assert np.array_equal(matrix_of(values, weight_format).data, encoded(values, weight_format).data)


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_bfloat16_rounds_as_torch_does(numbers: list[float]) -> None:
    values = np.array([numbers], np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    assert np.array_equal(expected, encoded(values, WeightFormat.BF16).dequantized(), equal_nan=True)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4))
def test_eight_bit_blocks_are_those_of_the_gguf_library(seed: int, rows: int, blocks: int) -> None:
    values = random_values(seed, rows, 32 * blocks)
    values[0, :32] = 0
    assert np.array_equal(matrix_of(values, WeightFormat.Q8_0).data, encoded(values, WeightFormat.Q8_0).data)
