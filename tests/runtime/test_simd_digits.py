import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from layered_llm.runtime.device.step_inputs import Float32s
from support.simd_kernels import KINDS, Kind, kernels_for
from support.walls import before_a_wall

BYTE_KINDS = [kind for kind in KINDS if kind.has_byte_products]
pytestmark = pytest.mark.parametrize("kind", BYTE_KINDS, ids=str)


@attrs.frozen(eq=False)
class Block:
    """What the kernel wrote in the place of 32 numbers."""

    digits: NDArray[np.int64]
    """[3, 32], the highest first."""
    starts: NDArray[np.int64]
    """[2, 2]: for codes that lie 8 and 128 too high; of the highest digit, and of the two others."""
    outlier: float
    column: int
    step: float
    total: float

    @property
    def whole(self) -> NDArray[np.int64]:
        return np.array([1 << 16, 1 << 8, 1]) @ self.digits


def written(kind: Kind, x: Float32s) -> list[Block]:
    room = before_a_wall(x)
    kernels_for(kind)("write_digits", room, len(room))
    return [
        Block(
            digits=np.frombuffer(raw[:96], np.int8).reshape(3, 32).astype(np.int64),
            starts=np.frombuffer(raw[96:112], np.int32).reshape(2, 2).astype(np.int64),
            outlier=float(np.frombuffer(raw[112:116], np.float32)[0]),
            column=int(np.frombuffer(raw[116:120], np.int32)[0]),
            step=float(np.frombuffer(raw[120:124], np.float32)[0]),
            total=float(np.frombuffer(raw[124:], np.float32)[0]),
        )
        for raw in (bytes(each) for each in room.view(np.uint8).reshape(-1, 128))
    ]


def normal(deviation: float) -> Float32s:
    return np.random.default_rng(0).normal(0, deviation, 96).astype(np.float32)


def with_one(number: float) -> Float32s:
    x = normal(1.0)
    x[40] = number
    return x


NUMBERS = {
    "usual": normal(1.0),
    "with nothing beside": np.where(np.arange(96) % 3, normal(1.0), np.float32(0)),
    "the last number before a power of two": with_one(float(np.nextafter(np.float32(16), np.float32(0)))),
    "a power of two": with_one(-16.0),
    "the most that needs no larger step": with_one(15.75),
    "somewhat more": with_one(15.875),
    "small": normal(1e-20),
    "large": normal(1e36),
}


@pytest.mark.parametrize("x", NUMBERS.values(), ids=NUMBERS)
def test_digits_are_the_numbers_to_within_half_a_step(x: Float32s, kind: Kind) -> None:
    for block, numbers in zip(written(kind, x), x.reshape(-1, 32).astype(np.float64), strict=True):
        assert (abs(numbers - block.whole * block.step) <= block.step / 2).all()
        assert 1.01 * 2.0**-22 >= block.step / abs(numbers).max() >= 2.0**-23
        assert (0.5, 0.0) == (np.frexp(block.step)[0], block.outlier)


@pytest.mark.parametrize("number", [60.0, -1e6, 1e30])
def test_a_number_that_is_larger_than_all_others_together_stays_out(number: float, kind: Kind) -> None:
    x = with_one(number)
    before, block, behind = written(kind, x)
    assert (0.0, x[40], 8, 0.0) == (before.outlier, block.outlier, block.column, behind.outlier)
    others = np.where(np.arange(32) == 8, 0, x[32:64].astype(np.float64))
    assert (abs(others - block.whole * block.step) <= block.step / 2).all()
    assert 1.01 * 2.0**-22 >= block.step / abs(others).max()


def test_of_two_large_numbers_none_stays_out(kind: Kind) -> None:
    x = with_one(1000.0)
    x[50] = -1000.0
    assert [0.0] * 3 == [block.outlier for block in written(kind, x)]


@pytest.mark.parametrize("x", NUMBERS.values(), ids=NUMBERS)
def test_a_block_knows_the_sums_of_its_digits(x: Float32s, kind: Kind) -> None:
    for block in written(kind, x):
        high, middle, low = block.digits.sum(axis=1)
        sums = np.array([high, 256 * middle + low])
        assert [(-8 * sums).tolist(), (-128 * sums).tolist()] == block.starts.tolist()
        assert np.float32(block.whole.sum()) * np.float32(block.step) == block.total


@pytest.mark.parametrize("number", [0.0, -0.0, 1e-40, 2.0**-123])
def test_what_is_too_small_to_matter_is_nothing(number: float, kind: Kind) -> None:
    for block in written(kind, np.full(32, number, np.float32)):
        assert ([0.0] * 32, 0.0, 0.0) == ((block.whole * block.step).tolist(), block.total, block.outlier)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_block_none(number: float, kind: Kind) -> None:
    assert [False, True, False] == [bool(np.isnan(block.step)) for block in written(kind, with_one(number))]
