"""Kernels for one token: addition with normalisation, bias, gated activation; and its queries and keys, normalised where the
family does, rotated, and put where attention reads them.

Must not know: models, threads, tokens beside it, how attention is computed.

There are as many numbers as fill vectors, except where a bias is added. Pairs of the rotation (Su et al., RoFormer, 2021) are
the two halves of a head. Halves that fill at least one vector are rotated: the last vector overlaps the one before it.
"""

import attrs

from layered_llm.runtime.cpu.simd.kernels.emitter import Function, Int
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Vector, VectorModule, Vectors


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


@attrs.frozen(kw_only=True, eq=False)
class Turn:
    """Where a token's angles are."""

    cosines: Int
    sines: Int
    half: Int
    """Numbers of half a head."""


def define_rotate(module: VectorModule, *, is_half: bool) -> Function:
    """Stores one head, rotated and times a scale, as fp32 or fp16.

    Arguments: head, norm (weight address, or 0), address of eps, cosines, sines, head_dim, scale's address, target, scratch
    (fp32 [head_dim]).
    """

    def emit(v: Vectors, *arguments: Int) -> None:
        head, norm, eps, cosines, sines, head_dim, scale, target, scratch = arguments
        k = v.emitter
        source = k.variable(head)
        with k.when(norm.differs(0)):
            normalize(v, v.splat(eps), head, norm, scratch, head_dim)
            source.set(scratch)
        turn = Turn(cosines=cosines, sines=sines, half=head_dim // 2)
        _rotate(v, source.get(), turn, v.splat(scale), target, is_half=is_half)

    return module.define(f"rotate_{'f16' if is_half else 'f32'}", emit, 9)


def _rotate(v: Vectors, source: Int, turn: Turn, scale: Vector, target: Int, *, is_half: bool) -> None:
    with v.emitter.loop(0, turn.half, v.lanes) as lane:
        first = lane.minimum(turn.half - v.lanes)
        low, high = v.load(source + first * F32_BYTES), v.load(source + (turn.half + first) * F32_BYTES)
        cosine, sine = v.load(turn.cosines + first * F32_BYTES), v.load(turn.sines + first * F32_BYTES)
        store_numbers(v, target, first, (low * cosine - high * sine) * scale, is_half=is_half)
        store_numbers(v, target, turn.half + first, (high * cosine + low * sine) * scale, is_half=is_half)


def define_copy(module: VectorModule, *, is_half: bool) -> Function:
    """Stores fp32 numbers as fp32 or fp16. Arguments: source, count, target."""

    def emit(v: Vectors, *arguments: Int) -> None:
        source, count, target = arguments
        with v.emitter.loop(0, count, v.lanes) as lane:
            store_numbers(v, target, lane, v.load(source + lane * F32_BYTES), is_half=is_half)

    return module.define(f"copy_{'f16' if is_half else 'f32'}", emit, 3)


def store_numbers(v: Vectors, target: Int, index: Int, numbers: Vector, *, is_half: bool) -> None:
    """Writes a vector at `index` of an fp32 or fp16 array."""
    if is_half:
        v.store_halfs(target + index * 2, numbers)
    else:
        v.store(target + index * F32_BYTES, numbers)
