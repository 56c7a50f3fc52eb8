import attrs
import numpy as np
import pytest

from layered_llm.runtime.checkpoint.matrices import WeightFormat, WeightMatrix, encoded
from layered_llm.runtime.cpu.simd.kernels.linear import scratch_floats
from support.simd_kernels import KINDS, Kind, arranged, kernels_for, multiply, prepared, random_matrix
from support.walls import before_a_wall

FORMATS = list(WeightFormat)
ROUNDING = 6e-7
"""Of the sum of all products' magnitudes: some units in its last place."""
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 16, 25, 26, 27, 29, 31]


@pytest.mark.parametrize(
    ("weight_format", "rows", "columns"),
    [
        pytest.param(weight_format, rows, columns, id=f"{weight_format.label}-{rows}x{columns}")
        for weight_format in FORMATS
        for rows, columns in [(24, 576), (1, 32), (7, 1536), (23, 96), (26, 48), (3, 16), (5, 640), (9, 672), (4, 2048)]
        if columns % weight_format.block_columns == 0
    ],
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_product_is_that_of_the_expanded_weights(weight_format: WeightFormat, rows: int, columns: int, kind: Kind) -> None:
    rng = np.random.default_rng(rows)
    matrix = random_matrix(rng, weight_format, rows, columns)
    for tokens in TOKENS:
        x = rng.normal(0, 1, (tokens, columns)).astype(np.float32)
        weights = matrix.dequantized().astype(np.float64)
        bound = ROUNDING * (np.abs(x).astype(np.float64) @ np.abs(weights).T)
        assert (np.abs(multiply(kind, x, matrix) - x.astype(np.float64) @ weights.T) <= bound).all()


def without_column(matrix: WeightMatrix, column: int) -> WeightMatrix:
    """The same with weights of 0 in one column; Q4_1 with lowest numbers of 0."""
    if matrix.format not in {WeightFormat.Q4_0, WeightFormat.Q4_1}:
        values = matrix.dequantized()
        values[:, column] = 0
        return encoded(values, matrix.format)
    blocks = matrix.data.reshape(matrix.rows, -1, matrix.format.block_bytes).copy()
    nothing, high = 8 if matrix.format is WeightFormat.Q4_0 else 0, column % 32 // 16
    byte = blocks[:, column // 32, matrix.format.block_bytes - 16 + column % 16]
    byte[:] = byte & (0x0F if high else 0xF0) | nothing << 4 * high
    if matrix.format is WeightFormat.Q4_1:
        blocks[..., 2:4] = 0
    return attrs.evolve(matrix, data=blocks.reshape(matrix.data.shape))


@pytest.mark.parametrize("factor", [10.0, 100.0, 1e4, 1e6])
@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda each: each.label)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_number_that_is_large_beside_its_neighbours_costs_their_products_nothing(
    weight_format: WeightFormat, kind: Kind, factor: float
) -> None:
    rng = np.random.default_rng(5)
    for column in (0, 17, 33, 63, 95):
        matrix = without_column(random_matrix(rng, weight_format, 33, 96), column)
        weights = matrix.dequantized().astype(np.float64)
        assert not weights[:, column].any()
        x = rng.normal(0, 1, (9, 96)).astype(np.float32)
        x[:, column] = np.float32(factor) * rng.choice([-1, 1], 9)
        bound = ROUNDING * (np.abs(x).astype(np.float64) @ np.abs(weights).T)
        assert (np.abs(multiply(kind, x, matrix) - x.astype(np.float64) @ weights.T) <= bound).all()


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda each: each.label)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_tokens_products_never_depend_on_the_tokens_beside_it(weight_format: WeightFormat, kind: Kind) -> None:
    rng = np.random.default_rng(1)
    columns = 1632 if weight_format.block_columns > 1 else 1648
    matrix = random_matrix(rng, weight_format, 25, columns)
    x = rng.normal(0, 1, (31, columns)).astype(np.float32)
    alone = np.concatenate([multiply(kind, row[None], matrix) for row in x])
    for tokens in TOKENS:
        assert alone[:tokens].tobytes() == multiply(kind, x[:tokens], matrix).tobytes()


@pytest.mark.parametrize("columns", [8, 40, 648])
def test_narrow_vectors_take_columns_that_fill_no_wide_one(columns: int) -> None:
    rng = np.random.default_rng(columns)
    matrix = random_matrix(rng, WeightFormat.F16, 5, columns)
    x = rng.normal(0, 1, (26, columns)).astype(np.float32)
    expected = x.astype(np.float64) @ matrix.dequantized().astype(np.float64).T
    np.testing.assert_allclose(multiply(Kind(8, 16), x, matrix), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda each: each.label)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("columns", [32, 1536, 1568])
def test_a_row_is_expanded_to_the_bits_of_its_numbers(weight_format: WeightFormat, columns: int, kind: Kind) -> None:
    matrix = random_matrix(np.random.default_rng(columns), weight_format, 37, columns)
    weights, expanded = arranged(matrix, kind.panels).data, np.empty((37, columns), np.float32)
    for number, row in enumerate(expanded):
        kernels_for(kind)(f"expand_{weight_format.label}", weights, weights.strides[0], number, columns, row)
    assert matrix.dequantized().tobytes() == expanded.tobytes()


def test_weights_may_lie_at_any_address() -> None:
    rng = np.random.default_rng(3)
    matrix = random_matrix(rng, WeightFormat.F32, 4, 64)
    room = np.empty(matrix.data.nbytes + 3, np.uint8)
    shifted = room[3:].reshape(matrix.data.shape)
    shifted[:] = matrix.data
    x = rng.normal(0, 1, (2, 64)).astype(np.float32)
    y = np.empty((2, 4), np.float32)
    kernels_for(Kind(8, 16))("linear_F32", x, 256, shifted, 256, 64, y, 16, 2, 4, 0)
    assert multiply(Kind(8, 16), x, matrix).tobytes() == y.tobytes()


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda each: each.label)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rows", [7, 8])
def test_nothing_behind_the_operands_is_touched(weight_format: WeightFormat, kind: Kind, rows: int) -> None:
    rng = np.random.default_rng(rows)
    matrix = random_matrix(rng, weight_format, rows, 96)
    weights = before_a_wall(arranged(matrix, kind.panels).data)
    for tokens in (1, 2, 5, 6, 8, 31):
        x = rng.normal(0, 1, (tokens, 96)).astype(np.float32)
        inputs = before_a_wall(prepared(kind, x, weight_format))
        y = before_a_wall(np.zeros((tokens, rows), np.float32))
        scratch = before_a_wall(np.empty(scratch_floats(rows, 96), np.float32))
        operands = (inputs, x.strides[0], weights, weights.strides[0], 96, y, y.strides[0])
        kernels_for(kind)(f"linear_{weight_format.label}", *operands, tokens, rows, scratch)
        assert multiply(kind, x, matrix).tobytes() == y.tobytes()
    row = before_a_wall(np.empty(96, np.float32))
    kernels_for(kind)(f"expand_{weight_format.label}", weights, weights.strides[0], rows - 1, 96, row)
    assert matrix.dequantized()[-1].tobytes() == row.tobytes()
