"""Kernels for one token: addition with normalisation, bias, gated activation.

Must not know: models, threads, tokens beside it.

There are as many numbers as fill vectors, except where a bias is added.
"""

from layered_llm.runtime.simd.emitter import Function, Int
from layered_llm.runtime.simd.vectors import F32_BYTES, Vector, VectorModule, Vectors


def define_add_norm(module: VectorModule) -> Function:
    """x += added, then normed = x / sqrt(mean(x²) + eps) * weight.

    Zhang, Sennrich, Root Mean Square Layer Normalization, 2019.
    Arguments: x, added (0: nothing), weight, normed, count, and the address of eps.
    """

    def emit(v: Vectors, *arguments: Int) -> None:
        x, added, weight, normed, count, eps = arguments
        with v.emitter.when(added.differs(0)), v.emitter.loop(0, count * F32_BYTES, v.vector_bytes) as offset:
            v.store(x + offset, v.load(x + offset) + v.load(added + offset))
        normalize(v, v.splat(eps), x, weight, normed, count)

    return module.define("add_norm", emit, 6)


def normalize(v: Vectors, eps: Vector, *arguments: Int) -> None:
    """normed = x / sqrt(mean(x²) + eps) * weight. Arguments: x, weight, normed, count."""
    x, weight, normed, count = arguments
    squares = v.accumulator()
    with v.emitter.loop(0, count * F32_BYTES, v.vector_bytes) as offset:
        numbers = v.load(x + offset)
        squares.set(v.fma(numbers, numbers, squares.get()))
    mean = v.spread_sum(squares.get()) / v.of_integer(count)
    factor = v.constant(1.0) / v.root(mean + eps)
    with v.emitter.loop(0, count * F32_BYTES, v.vector_bytes) as offset:
        v.store(normed + offset, v.load(x + offset) * factor * v.load(weight + offset))


def define_gated(module: VectorModule) -> Function:
    """activated = silu(gate) * up (Shazeer, GLU Variants Improve Transformer, 2020). Arguments: gate, up, activated, count."""

    def emit(v: Vectors, *arguments: Int) -> None:
        gate, up, activated, count = arguments
        one, zero = v.constant(1.0), v.constant(0.0)
        with v.emitter.loop(0, count * F32_BYTES, v.vector_bytes) as offset:
            numbers = v.load(gate + offset)
            v.store(activated + offset, numbers / (one + v.exp(zero - numbers)) * v.load(up + offset))

    return module.define("gated", emit, 4)


def define_add_bias(module: VectorModule) -> Function:
    """y += bias for any count. Arguments: y, bias, count."""

    def emit(v: Vectors, *arguments: Int) -> None:
        y, bias, count = arguments
        whole = count - count % v.lanes
        with v.emitter.loop(0, whole * F32_BYTES, v.vector_bytes) as offset:
            v.store(y + offset, v.load(y + offset) + v.load(bias + offset))
        with v.emitter.loop(whole * F32_BYTES, count * F32_BYTES, F32_BYTES) as offset:
            v.store_lane(y + offset, v.splat(y + offset) + v.splat(bias + offset))

    return module.define("add_bias", emit, 3)
