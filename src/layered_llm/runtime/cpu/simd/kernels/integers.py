"""Vectors of 32-bit integers, as many as a module's vectors have fp32 numbers: what products of bytes need.

Must not know: what the numbers mean, kernels.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final

import attrs
from llvmlite import ir

from layered_llm.runtime.cpu.simd.kernels.emitter import I1, I8, I32, Int
from layered_llm.runtime.cpu.simd.kernels.machine import WIDE_LANES
from layered_llm.runtime.cpu.simd.kernels.vectors import F32, I16, Vector, Vectors

_QUAD: Final = 4
_ROUNDING_OF_MACHINE: Final = 4
"""To the nearest, if nobody changed it."""
_MAGNITUDE_BITS: Final = 0x7FFF_FFFF


@attrs.frozen(eq=False)
class Integers:
    """The integer operations of one function."""

    vectors: Vectors

    @property
    def kind(self) -> Any:
        return self.vectors.lanes_of(I32)

    def load(self, address: Int) -> Any:
        return self.vectors.load_words(address)

    def splat(self, address: Int) -> Any:
        """The int32 at `address`, in all lanes."""
        return self.vectors.spread_int32(self.vectors.emitter.load_int32(address))

    def nearest(self, x: Vector) -> Any:
        """Ties to even; -2^31 for what is not a number or beyond the range."""
        v = self.vectors
        if v.lanes == WIDE_LANES:
            name, more = "llvm.x86.avx512.mask.cvtps2dq.512", [v.same(I32, 0), ir.Constant(I16, -1), I32(_ROUNDING_OF_MACHINE)]
        else:
            name, more = "llvm.x86.avx.cvt.ps2dq.256", []
        function = v.module.code.intrinsic(name, self.kind, [v.kind, *(each.type for each in more)])
        return v.builder.call(function, [x.value, *more])

    def store_low_bytes(self, address: Int, integers: Any) -> None:
        """The lowest 8 bits of each."""
        v = self.vectors
        v.builder.store(v.builder.trunc(integers, v.lanes_of(I8)), v.emitter.pointer(address), align=1)

    def without_low_bytes(self, integers: Any, count: int) -> Any:
        """What multiples of 256^count are left where that many of the lowest bytes, as signed numbers, are taken away."""
        builder, same = self.vectors.builder, self.vectors.same
        halves = sum(1 << (8 * number + 7) for number in range(count))
        return builder.ashr(builder.add(integers, same(I32, halves)), same(I32, 8 * count)) if count else integers

    def field(self, integers: Any, place: Int, mask: int) -> Any:
        """The bits of each from `place` on that `mask` leaves."""
        builder, v = self.vectors.builder, self.vectors
        return builder.and_(builder.lshr(integers, v.spread_int32(place)), v.same(I32, mask))

    def low_nibbles(self, integers: Any) -> Any:
        """Of each byte."""
        return self.vectors.builder.and_(integers, self.vectors.same(I32, 0x0F0F_0F0F))

    def high_nibbles(self, integers: Any) -> Any:
        return self.low_nibbles(self.vectors.builder.lshr(integers, self.vectors.same(I32, 4)))

    def added(self, parts: Sequence[Any]) -> Any:
        return functools.reduce(self.vectors.builder.add, parts)

    def sums(self, two: Sequence[Any]) -> Any:
        """<4 x i32>: the sum of each of 2 vectors, in the first places."""
        first, second = map(self._folded, two)
        builder = self.vectors.builder
        pairs = builder.add(self._shuffled(first, second, [0, 4, 1, 5]), self._shuffled(first, second, [2, 6, 3, 7]))
        return builder.add(pairs, self._shuffled(pairs, pairs, [2, 3, 0, 1]))

    def quad(self, numbers: Sequence[int]) -> Any:
        """A constant of 4 numbers."""
        return ir.Constant(self.vectors.lanes_of(I32, _QUAD), list(numbers))

    def chosen(self, quad: Any, places: Sequence[int]) -> Any:
        """The numbers at these places of 4."""
        return self._shuffled(quad, quad, places)

    def spread_first(self, quad: Any) -> Vector:
        """The first of 4 numbers as fp32, in all lanes."""
        v = self.vectors
        numbers = v.builder.sitofp(quad, v.lanes_of(F32, _QUAD))
        return Vector(v, self._shuffled(numbers, numbers, [0] * v.lanes))

    def of(self, x: Vector) -> Any:
        """The bits of its numbers."""
        return self.vectors.builder.bitcast(x.value, self.kind)

    def magnitude_bits(self, x: Vector) -> Any:
        """Those of what is not a number are the largest."""
        return self.vectors.builder.and_(self.of(x), self.vectors.same(I32, _MAGNITUDE_BITS))

    def larger(self, x: Any, y: Any) -> Any:
        """Of each pair, as unsigned numbers."""
        kind, v = self.kind, self.vectors
        return v.builder.call(v.module.code.intrinsic(f"llvm.umax.v{v.lanes}i32", kind, [kind, kind]), [x, y])

    def spread_largest(self, x: Any) -> Any:
        """The largest in all lanes."""
        distance = self.vectors.lanes // 2
        while distance:
            x = self.larger(x, self._shuffled(x, x, [lane ^ distance for lane in range(self.vectors.lanes)]))
            distance //= 2
        return x

    def add_products(self, sums: Any, unsigned: Any, signed: Any) -> Any:
        """To each sum, the products of the 4 unsigned bytes in its lane with the signed ones (VNNI)."""
        v = self.vectors
        byte_kind = v.lanes_of(I8, 4 * v.lanes)
        name = f"llvm.x86.avx512.vpdpbusd.{8 * v.vector_bytes}"
        function = v.module.code.intrinsic(name, self.kind, [self.kind, byte_kind, byte_kind])
        return v.builder.call(function, [sums, v.builder.bitcast(unsigned, byte_kind), v.builder.bitcast(signed, byte_kind)])

    def joined(self, high: Any, low: Any) -> Any:
        """high * 256 + low."""
        builder = self.vectors.builder
        return builder.add(builder.shl(high, self.vectors.same(I32, 8)), low)

    def store_first(self, address: Int, x: Vector, count: Int) -> None:
        """The first `count` numbers, or all."""
        v = self.vectors
        numbers = ir.Constant(self.kind, list(range(v.lanes)))
        is_first = v.builder.icmp_signed("<", numbers, v.spread_int32(count))
        name = f"llvm.masked.store.v{v.lanes}f32.p0"
        store = v.module.code.intrinsic(name, ir.VoidType(), [v.kind, ir.PointerType(), I32, v.lanes_of(I1)])
        v.builder.call(store, [x.value, v.emitter.pointer(address), I32(1), is_first])

    def _folded(self, x: Any) -> Any:
        """4 numbers: an upper half is added to the lower one, again and again."""
        lanes = self.vectors.lanes
        while lanes > _QUAD:
            lanes //= 2
            lower, upper = range(lanes), range(lanes, 2 * lanes)
            x = self.vectors.builder.add(self._shuffled(x, x, lower), self._shuffled(x, x, upper))
        return x

    def _shuffled(self, x: Any, y: Any, lanes: Sequence[int]) -> Any:
        order = ir.Constant(self.vectors.lanes_of(I32, len(lanes)), list(lanes))
        return self.vectors.builder.shuffle_vector(x, y, order)
