import math

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.columns import (
    Columnar,
    column,
    pack_f32,
    pack_i8,
    pack_i32,
    pack_i64,
    packed,
    rows,
    unpack_f32,
    unpack_i8,
    unpack_i32,
    unpack_i64,
)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.integers(-128, 127)))
def test_columns_give_back_what_was_packed(small: list[int], large: list[int], tiny: list[int]) -> None:
    assert small == list(unpack_i32(pack_i32(small)))
    assert large == list(unpack_i64(pack_i64(large)))
    assert tiny == list(unpack_i8(pack_i8(tiny)))


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_a_column_of_floats_gives_back_what_was_packed(values: list[float]) -> None:
    assert values == list(unpack_f32(pack_f32(values)))


def test_a_float_beyond_the_range_is_infinite() -> None:
    assert [math.inf, -math.inf] == list(unpack_f32(pack_f32([1e300, -1e300])))


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack_i32([2**31])


@attrs.frozen
class _Holder:
    column: bytes = attrs.field(validator=packed("i"))


@pytest.mark.parametrize("value", [b"123", bytearray(4), "1234", None])
def test_a_field_that_is_no_whole_column_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="column"):
        _Holder(value)  # type: ignore[arg-type]  # what a peer may send


def test_rows_are_counted_in_items() -> None:
    assert 3 == rows("q", pack_i64([1, 2, 3]))


@attrs.frozen
class _Table(Columnar):
    ids: bytes = column("q", "rows")
    codes: bytes = column("b", "rows")
    others: bytes = column("i", "others", default=b"")


def test_columns_of_one_table_are_equally_long_and_those_of_another_need_not_be() -> None:
    assert pack_i32([1]) == _Table(pack_i64([1, 2]), pack_i8([1, 2]), pack_i32([1])).others
    with pytest.raises(ValueError, match="unequal"):
        _Table(pack_i64([1, 2]), pack_i8([1]))


@pytest.mark.parametrize("value", [b"123", bytearray(8), "12345678", None])
def test_a_field_of_a_table_that_is_no_whole_column_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="ids: not a packed column"):
        _Table(value, b"")  # type: ignore[arg-type]  # what a peer may send
