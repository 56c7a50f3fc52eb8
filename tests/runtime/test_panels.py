from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import Bytes, WeightFormat, WeightMatrix
from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, PanelLayout, PanelMatrix, byte_panels, has_panels, scales_of
from support.simd_kernels import random_matrix

BLOCK_FORMATS = [weight_format for weight_format in WeightFormat if weight_format.block_columns > 1]
LAYOUTS = [FLOAT_PANELS, byte_panels(8), byte_panels(16)]


def zeros(count: int) -> Bytes:
    return np.zeros(count, np.uint8)


@given(st.sampled_from(BLOCK_FORMATS), st.sampled_from(LAYOUTS), st.integers(1, 37), st.integers(1, 5))
def test_a_panel_matrix_has_the_rows_of_the_matrix(
    weight_format: WeightFormat, layout: PanelLayout, rows: int, blocks: int
) -> None:
    matrix = random_matrix(np.random.default_rng(rows), weight_format, rows, 32 * blocks)
    panels = PanelMatrix.of(matrix, layout, zeros)
    assert matrix.data.tobytes() == panels.unpacked().data.tobytes()
    assert matrix.dequantized().tobytes() == panels.dequantized().tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_panel_matrix_of_many_rows_has_each_in_its_place(layout: PanelLayout) -> None:
    matrix = random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 130 * layout.rows + 3, 32)
    assert matrix.data.tobytes() == PanelMatrix.of(matrix, layout, zeros).unpacked().data.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [4, 5, 7, 8, 16, 17])
def test_it_takes_the_bytes_of_whole_panels(rows: int, layout: PanelLayout) -> None:
    matrix = random_matrix(np.random.default_rng(0), WeightFormat.Q4_1, rows, 64)
    asked: list[int] = []

    def room(count: int) -> Bytes:
        asked.append(count)
        return zeros(count)

    panels = PanelMatrix.of(matrix, layout, room)
    whole = -(-rows // layout.rows)
    assert ([whole * layout.rows * 40], (whole, layout.rows * 40)) == (asked, panels.data.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_fill_the_last_panel_are_zeros_whatever_the_room_held(layout: PanelLayout) -> None:
    matrix = random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 5, 32)
    panels = PanelMatrix.of(matrix, layout, lambda count: np.full(count, 255, np.uint8))
    filled = attrs.evolve(panels, rows=layout.rows * len(panels.data)).dequantized()
    assert matrix.dequantized().tobytes() == filled[:5].tobytes()
    assert not filled[5:].any()


def test_a_unit_for_floats_has_the_scales_of_its_rows_then_their_codes_byte_by_byte() -> None:
    rows = np.array([[row, 0, *range(100 + row, 116 + row)] for row in range(4)], np.uint8)
    matrix = WeightMatrix(format=WeightFormat.Q4_0, rows=4, columns=32, data=rows)
    (panel,) = PanelMatrix.of(matrix, FLOAT_PANELS, zeros).data
    codes = [100 + row + byte for byte in range(16) for row in range(4)]
    assert [0, 0, 1, 0, 2, 0, 3, 0, *codes] == panel.tolist()


def test_a_unit_for_bytes_has_all_scales_then_all_lowest_numbers_then_codes_by_four() -> None:
    rows = np.array([[row, 0, 50 + row, 0, *range(100 + row, 116 + row)] for row in range(8)], np.uint8)
    matrix = WeightMatrix(format=WeightFormat.Q4_1, rows=8, columns=32, data=rows)
    (panel,) = PanelMatrix.of(matrix, byte_panels(8), zeros).data
    scales = [byte for first in (0, 50) for row in range(8) for byte in (first + row, 0)]
    codes = [100 + row + byte for word in range(0, 16, 4) for row in range(8) for byte in range(word, word + 4)]
    assert [*scales, *codes] == panel.tolist()


def test_codes_of_8_bits_lie_128_higher_for_bytes() -> None:
    rows = np.zeros((8, 34), np.uint8)
    rows[0, 2:] = np.arange(-16, 16, dtype=np.int8).view(np.uint8)
    matrix = WeightMatrix(format=WeightFormat.Q8_0, rows=8, columns=32, data=rows)
    (panel,) = PanelMatrix.of(matrix, byte_panels(8), zeros).data
    assert list(range(112, 144)) == panel[16:].reshape(8, 8, 4)[:, 0].reshape(-1).tolist()


@pytest.mark.parametrize("weight_format", list(WeightFormat), ids=lambda each: each.label)
def test_only_formats_with_blocks_have_panels(weight_format: WeightFormat) -> None:
    assert (weight_format in BLOCK_FORMATS) == has_panels(weight_format)


def test_a_format_without_blocks_has_no_scales() -> None:
    with pytest.raises(InvariantViolated, match="BF16"):
        scales_of(WeightFormat.BF16)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": WeightFormat.F32}, "4 x 64 as F32"),
        ({"rows": 5}, "5 x 64 as Q8_0"),
        ({"columns": 32}, "4 x 32 as Q8_0"),
        ({"data": np.zeros((1, 272), np.int8)}, "panels of int8"),
        ({"data": np.zeros((1, 544), np.uint8)[:, ::2]}, "with strides"),
    ],
)
def test_what_is_no_panels_is_refused(changes: dict[str, Any], complaint: str) -> None:
    panels = PanelMatrix.of(random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 4, 64), FLOAT_PANELS, zeros)
    with pytest.raises(InvariantViolated, match=complaint):
        attrs.evolve(panels, **changes)
