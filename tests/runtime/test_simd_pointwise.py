import numpy as np
import pytest

from layered_llm.runtime.device.step_inputs import Float32s
from support.simd_kernels import LANES, kernels

EPS = 1e-5
pytestmark = pytest.mark.parametrize("lanes", LANES)


def normal(seed: int, *shape: int) -> Float32s:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def fp32(number: float) -> Float32s:
    return np.array([number], np.float32)


def normed(x: Float32s, weight: Float32s) -> Float32s:
    wide = x.astype(np.float64)
    result: Float32s = (wide / np.sqrt((wide**2).mean() + EPS) * weight).astype(np.float32)
    return result


@pytest.mark.parametrize("count", [16, 48, 576])
def test_addition_and_norm(lanes: int, count: int) -> None:
    x, added, weight, result = normal(1, count), normal(2, count), normal(3, count), np.empty(count, np.float32)
    total = x + added
    kernels(lanes)("add_norm", x, added, weight, result, count, fp32(EPS))
    assert total.tobytes() == x.tobytes()
    np.testing.assert_allclose(result, normed(total, weight), rtol=1e-6, atol=1e-7)


def test_norm_without_addition_leaves_its_input(lanes: int) -> None:
    x, weight, result = normal(1, 64), normal(3, 64), np.empty(64, np.float32)
    before = x.copy()
    kernels(lanes)("add_norm", x, 0, weight, result, 64, fp32(EPS))
    assert before.tobytes() == x.tobytes()
    np.testing.assert_allclose(result, normed(x, weight), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("count", [1, 7, 8, 16, 21])
def test_biases_of_any_number(lanes: int, count: int) -> None:
    y, bias = normal(1, count + 1), normal(2, count)
    expected = np.concatenate([y[:count] + bias, y[count:]])
    kernels(lanes)("add_bias", y, bias, count)
    assert expected.tobytes() == y.tobytes()


def test_exponential_within_two_units_in_the_last_place(lanes: int) -> None:
    x = np.linspace(-86.9, 88.0, 80_000, dtype=np.float32)
    y = np.empty_like(x)
    kernels(lanes)("exp", x, y, len(x))
    exact = np.exp(x.astype(np.float64))
    assert 2.0 >= (np.abs(y - exact) / np.spacing(exact.astype(np.float32))).max()


def test_exponential_beyond_its_range(lanes: int) -> None:
    x = np.tile(np.array([-np.inf, -1e30, -88.0, 0.0, 200.0, np.inf, np.nan, -0.0], np.float32), 2)
    y = np.empty_like(x)
    kernels(lanes)("exp", x, y, len(x))
    assert [0.0, 0.0, 0.0, 1.0] == y[:4].tolist()
    assert y[4] == y[5] > 1e38
    assert np.isnan(y[6])


def test_gated_activation(lanes: int) -> None:
    gate, up, result = 30 * normal(1, 800), normal(2, 800), np.empty(800, np.float32)
    gate[:3] = -200, 200, 0
    kernels(lanes)("gated", gate, up, result, 800)
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(result, wide / (1 + np.exp(-wide)) * up, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("head_dim", [16, 24, 40, 32, 48, 64, 80, 128])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rotation(lanes: int, head_dim: int, dtype: str, has_norm: bool) -> None:
    if head_dim < 2 * lanes or head_dim % lanes:
        pytest.skip("heads of this size are left to narrow vectors")
    half = head_dim // 2
    head, weight, angles = normal(1, head_dim), normal(2, head_dim), normal(3, half)
    cosines, sines, scratch = np.cos(angles), np.sin(angles), np.empty(head_dim, np.float32)
    target = np.empty(head_dim, np.dtype(dtype))
    name = "rotate_f32" if dtype == "float32" else "rotate_f16"
    norm = weight if has_norm else 0
    kernels(lanes)(name, head, norm, fp32(EPS), cosines, sines, head_dim, fp32(0.125), target, scratch)
    low, high = np.split(normed(head, weight) if has_norm else head, 2)
    expected = np.concatenate([low * cosines - high * sines, high * cosines + low * sines]) * 0.125
    np.testing.assert_allclose(target, expected.astype(dtype), rtol=1e-5 if dtype == "float32" else 1e-3, atol=1e-6)


@pytest.mark.parametrize(("dtype", "name"), [("float32", "copy_f32"), ("float16", "copy_f16")])
def test_copies_round_to_the_nearest(lanes: int, dtype: str, name: str) -> None:
    source = normal(1, 64)
    target = np.empty(64, np.dtype(dtype))
    kernels(lanes)(name, source, 64, target)
    assert source.astype(dtype).tobytes() == target.tobytes()


def test_numbers_beyond_fp16_become_its_largest_and_no_infinity(lanes: int) -> None:
    source = np.tile(np.array([65_504, 65_519, 65_520, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32), 2)
    target = np.empty(16, np.float16)
    kernels(lanes)("copy_f16", source, 16, target)
    assert [65_504.0, 65_504.0, 65_504.0, 65_504.0, -65_504.0, 65_504.0, -65_504.0] == target[:7].tolist()
    assert np.isnan(target[7])


def test_the_smallest_numbers_keep_their_values(lanes: int) -> None:
    source = np.tile(np.array([1e-40, -1e-45, 1e-38, 6e-8, 3e-8, 1e-7, 6e-5, 0], np.float32), 2)
    wide, half = np.empty(16, np.float32), np.empty(16, np.float16)
    kernels(lanes)("copy_f32", source, 16, wide)
    kernels(lanes)("copy_f16", source, 16, half)
    assert (source.tobytes(), source.astype(np.float16).tobytes()) == (wide.tobytes(), half.tobytes())
