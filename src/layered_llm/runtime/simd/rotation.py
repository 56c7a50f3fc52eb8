"""Queries and keys of one token and one kv head: normalised where the family does, rotated, and put where attention reads them.

Must not know: models, threads, how attention is computed.

Pairs of the rotation (Su et al., RoFormer, 2021) are the two halves of a head. Halves that fill at least one vector
are rotated: the last vector overlaps the one before it.
"""

import attrs

from layered_llm.runtime.simd.emitter import Function, Int
from layered_llm.runtime.simd.pointwise import normalize
from layered_llm.runtime.simd.vectors import F32_BYTES, Vector, VectorModule, Vectors


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
