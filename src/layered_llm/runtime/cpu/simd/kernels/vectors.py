"""Vectors of fp32 numbers as Python expressions that emit LLVM instructions.

Must not know: kernels, weight formats.

A module's vectors all have as many numbers as its `lanes` say: 8, or 16 where the machine has AVX-512.

No operation may be reordered or contracted by the compiler: a sum has the order in which it is written, and the same code
gives the same bits whatever surrounds it. Loads and stores need no alignment.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
from llvmlite import ir

from layered_llm.runtime.cpu.simd.kernels.emitter import I8, I32, Bool, CodeModule, Emitter, Function, Int

F32: Final = ir.FloatType()
HALF: Final = ir.HalfType()
I16: Final = ir.IntType(16)
F32_BYTES: Final = 4


_LOCALITIES: Final = {1: 3, 2: 2}
"""What LLVM calls the caches."""
_FEW_REGISTERS: Final = 16
"""Without AVX-512."""
_FOLDED_LANES: Final = 8
"""What the last sums of a vector are made of, however wide it is."""
_LARGEST_HALF: Final = 65_504.0


@attrs.frozen(kw_only=True, eq=False)
class VectorModule:
    """Functions over vectors of one size that are compiled together."""

    code: CodeModule
    lanes: int
    """Numbers of a vector: 8 or 16."""
    registers: int
    """Vector registers of the machine: 16, or 32 with AVX-512."""
    has_byte_products: bool
    """Whether matrices of blocks are multiplied by products of bytes (VNNI)."""

    @property
    def vector_bytes(self) -> int:
        return F32_BYTES * self.lanes

    @property
    def has_few_registers(self) -> bool:
        return self.registers <= _FEW_REGISTERS

    def define(self, name: str, emit: "VectorKernel", parameters: int, *, exported: bool = False) -> Function:
        """Generates the function `name` of the code that `emit` emits."""

        def with_vectors(emitter: Emitter, *arguments: Int) -> None:
            emit(Vectors(self, emitter), *arguments)

        return self.code.function(name, with_vectors, parameters, exported=exported)


@attrs.frozen(eq=False)
class Vector:
    """As many fp32 numbers as the module's vectors have."""

    vectors: "Vectors"
    value: Any

    def __add__(self, other: "Vector") -> "Vector":
        return Vector(self.vectors, self.vectors.builder.fadd(self.value, other.value))

    def __sub__(self, other: "Vector") -> "Vector":
        return Vector(self.vectors, self.vectors.builder.fsub(self.value, other.value))

    def __mul__(self, other: "Vector") -> "Vector":
        return Vector(self.vectors, self.vectors.builder.fmul(self.value, other.value))

    def __truediv__(self, other: "Vector") -> "Vector":
        return Vector(self.vectors, self.vectors.builder.fdiv(self.value, other.value))


@attrs.frozen(eq=False)
class Accumulator:
    """A vector that loops change; the optimiser keeps it in a register."""

    vectors: "Vectors"
    place: Any

    def get(self) -> Vector:
        return Vector(self.vectors, self.vectors.builder.load(self.place, typ=self.vectors.kind))

    def set(self, value: Vector) -> None:
        self.vectors.builder.store(value.value, self.place)


@attrs.frozen(eq=False)
class Vectors:
    """The vector operations of one function."""

    module: VectorModule
    emitter: Emitter

    @property
    def builder(self) -> Any:
        return self.emitter.builder

    @property
    def lanes(self) -> int:
        return self.module.lanes

    @property
    def vector_bytes(self) -> int:
        return self.module.vector_bytes

    @property
    def kind(self) -> Any:
        return self.lanes_of(F32)

    def lanes_of(self, kind: Any, lanes: int | None = None) -> Any:
        """The type of as many elements of `kind` as a vector has, or of `lanes`."""
        return ir.VectorType(kind, self.lanes if lanes is None else lanes)

    def same(self, kind: Any, number: int) -> Any:
        """A constant: the integer in all lanes."""
        return ir.Constant(self.lanes_of(kind), [number] * self.lanes)

    def constant(self, number: float) -> Vector:
        return Vector(self, ir.Constant(self.kind, [_nearest_fp32(number)] * self.lanes))

    def accumulator(self, start: Vector | None = None) -> Accumulator:
        result = Accumulator(self, self.emitter.stack_place(self.kind))
        result.set(self.constant(0.0) if start is None else start)
        return result

    def load(self, address: Int) -> Vector:
        return Vector(self, self._load(address, self.kind))

    def store(self, address: Int, value: Vector) -> None:
        self._store(address, value.value)

    def load_halfs(self, address: Int) -> Vector:
        """Fp16 numbers."""
        return Vector(self, self.builder.fpext(self._load(address, self.lanes_of(HALF)), self.kind))

    def store_halfs(self, address: Int, value: Vector) -> None:
        """Rounded to the nearest fp16 numbers that are finite; what is not a number stays none."""
        largest, lowest = self.constant(_LARGEST_HALF), self.constant(-_LARGEST_HALF)
        bounded = self.minimum(largest, self.maximum(lowest, value))
        self._store(address, self.builder.fptrunc(bounded.value, self.lanes_of(HALF)))

    def load_bfloats(self, address: Int) -> Vector:
        """Bf16 numbers: the upper halves of fp32 ones."""
        builder, wide = self.builder, self.lanes_of(I32)
        bits = builder.zext(self._load(address, self.lanes_of(I16)), wide)
        return Vector(self, builder.bitcast(builder.shl(bits, self.same(I32, 16)), self.kind))

    def load_bytes(self, address: Int) -> Any:
        """A vector of bytes as they are."""
        return self._load(address, self.lanes_of(I8))

    def splat(self, address: Int) -> Vector:
        """The fp32 number at `address`, in all lanes."""
        return self._spread(self._load(address, F32))

    def splat_beside_shuffles(self, address: Int) -> Vector:
        """The same, in assembly, for loops that wait for shuffles.

        On Zen 4, `vbroadcastss` from memory to 16 lanes takes a shuffle unit (measured), while `vpbroadcastd` needs none. LLVM
        takes them for the same, and chooses the first one for fp32 numbers.
        """
        function = ir.FunctionType(self.lanes_of(I32), [ir.PointerType()])
        constraints = f"={'x' if self.module.has_few_registers else 'v'},p,~{{memory}}"
        pointer = self.emitter.pointer(address)
        words = self.builder.asm(function, "vpbroadcastd $1, $0", constraints, [pointer], side_effect=True)
        return Vector(self, self.builder.bitcast(words, self.kind))

    def widen(self, source: Int, target: Int, count: int) -> None:
        """Writes `count` fp16 numbers as fp32."""
        wide = self.builder.fpext(self._load(source, self.lanes_of(HALF, count)), self.lanes_of(F32, count))
        self._store(target, wide)

    def load_words(self, address: Int) -> Any:
        """A vector of 32 bits each."""
        return self._load(address, self.lanes_of(I32))

    def spread_int32(self, number: Int) -> Any:
        """The lower 32 bits of the integer, in all lanes."""
        return self._spread_value(self.builder.trunc(number.value, I32), self.lanes_of(I32))

    def fma(self, x: Vector, y: Vector, z: Vector) -> Vector:
        """x * y + z, rounded once."""
        return self._called("fma", x, y, z)

    def maximum(self, x: Vector, y: Vector) -> Vector:
        """The larger number of each pair; `y` where one is not a number."""
        return self.selected(self.builder.fcmp_ordered(">", x.value, y.value), x, y)

    def minimum(self, x: Vector, y: Vector) -> Vector:
        """The smaller number of each pair; `y` where one is not a number."""
        return self.selected(self.builder.fcmp_ordered("<", x.value, y.value), x, y)

    def exp(self, x: Vector) -> Vector:
        """e^x within 2 units in the last place; 0 below -87, e^88 above 88.

        Cephes' expf: reduction by multiples of ln 2, polynomial of degree 6.
        """
        builder, integers = self.builder, self.lanes_of(I32)
        bounded = self.minimum(self.constant(_EXP_HIGHEST), self.maximum(self.constant(_EXP_LOWEST), x))
        turns = self._called("rint", bounded * self.constant(1.44269504088896341))
        rest = self.fma(turns, self.constant(-0.693359375), bounded)
        rest = self.fma(turns, self.constant(2.12194440e-4), rest)
        series = self.constant(_EXP_SERIES[0])
        for coefficient in _EXP_SERIES[1:]:
            series = self.fma(series, rest, self.constant(coefficient))
        mantissa = self.fma(series, rest * rest, rest) + self.constant(1.0)
        exponent = builder.add(builder.fptosi(turns.value, integers), self.same(I32, 127))
        power = Vector(self, builder.bitcast(builder.shl(exponent, self.same(I32, 23)), self.kind))
        is_low = builder.fcmp_ordered("<", x.value, self.constant(_EXP_LOWEST).value)
        return self.selected(is_low, self.constant(0.0), mantissa * power)

    def first_lanes(self, count: Int, x: Vector, otherwise: Vector) -> Vector:
        """The first `count` numbers of `x`, the others of `otherwise`."""
        numbers = self.lanes_of(I32)
        bound = self.spread_int32(count)
        is_first = self.builder.icmp_signed("<", ir.Constant(numbers, list(range(self.lanes))), bound)
        return self.selected(is_first, x, otherwise)

    def sums(self, four: Sequence[Vector]) -> Any:
        """<4 x float>: the sum of each of 4 vectors; the order within a vector is the same for all."""
        eights = [self._folded(each.value) for each in four]
        first, second = self._pair_sums(eights[0], eights[1]), self._pair_sums(eights[2], eights[3])
        quads = self.builder.fadd(
            self._shuffled(first, second, [0, 1, 8, 9, 4, 5, 12, 13]),
            self._shuffled(first, second, [2, 3, 10, 11, 6, 7, 14, 15]),
        )
        return self.builder.fadd(self._shuffled(quads, quads, [0, 1, 2, 3]), self._shuffled(quads, quads, [4, 5, 6, 7]))

    def spread_sum(self, x: Vector) -> Vector:
        """The sum of the numbers in all lanes, in the order of `sums`."""
        return self._spread(self._first(self.sums([x] * 4)))

    def spread_maximum(self, x: Vector) -> Vector:
        """The largest of the numbers in all lanes."""
        distance = self.lanes // 2
        while distance:
            others = self._shuffled(x.value, x.value, [lane ^ distance for lane in range(self.lanes)])
            x = self.maximum(x, Vector(self, others))
            distance //= 2
        return x

    def store_quad(self, address: Int, value: Any) -> None:
        """4 numbers, as `sums` gives them."""
        self._store(address, value)

    def add_lanes(self, address: Int, quad: Any, lanes: range, continues: Int) -> None:
        """Adds these of 4 numbers to those at `address`; if `continues` is 0, to zeros."""
        kind = self.lanes_of(F32, len(lanes))
        zeros = ir.Constant(kind, [0.0] * len(lanes))
        begun = self.builder.select(continues.differs(0).value, self._load(address, kind), zeros)
        self._store(address, self.builder.fadd(begun, self._shuffled(quad, quad, lanes)))

    def store_lane(self, address: Int, x: Vector) -> None:
        """The first of the numbers."""
        self._store(address, self._first(x.value))

    def root(self, x: Vector) -> Vector:
        return self._called("sqrt", x)

    def prefetch(self, address: Int, *, cache: int = 1) -> None:
        """Asks for the cache line at `address`, which need not exist, to come into the first or the second cache."""
        function = self.module.code.intrinsic("llvm.prefetch.p0", ir.VoidType(), [ir.PointerType(), I32, I32, I32])
        self.builder.call(function, [self.emitter.pointer(address), I32(0), I32(_LOCALITIES[cache]), I32(1)])

    def lane_numbers(self) -> Vector:
        """0, 1, 2 …"""
        return Vector(self, ir.Constant(self.kind, [float(lane) for lane in range(self.lanes)]))

    def is_first_larger(self, x: Vector, y: Vector) -> Bool:
        """Of the first numbers; not where one is none."""
        return Bool(self.emitter, self._first(self.builder.fcmp_ordered(">", x.value, y.value)))

    def of_integers(self, integers: Any) -> Vector:
        """A vector of int32 as fp32."""
        return Vector(self, self.builder.sitofp(integers, self.kind))

    def looked_up(self, table: Vector, lanes: Any) -> Vector:
        """In each lane, the number of `table` in the lane that the low 4 bits say: of vectors of 16 numbers only."""
        function = self.module.code.intrinsic("llvm.x86.avx512.permvar.sf.512", self.kind, [self.kind, self.lanes_of(I32)])
        return Vector(self, self.builder.call(function, [table.value, lanes]))

    def of_bits(self, bits: Any) -> Vector:
        """The fp32 numbers of these bits."""
        return Vector(self, self.builder.bitcast(bits, self.kind))

    def of_integer(self, number: Int) -> Vector:
        """The integer as fp32, in all lanes."""
        return self._spread(self.builder.sitofp(number.value, F32))

    def selected(self, condition: Any, x: Vector, y: Vector) -> Vector:
        """In each lane, the number of `x` where the condition holds, else that of `y`."""
        return Vector(self, self.builder.select(condition, x.value, y.value))

    def _called(self, name: str, *arguments: Vector) -> Vector:
        function = self.module.code.intrinsic(f"llvm.{name}.v{self.lanes}f32", self.kind, [self.kind] * len(arguments))
        return Vector(self, self.builder.call(function, [argument.value for argument in arguments]))

    def _load(self, address: Int, kind: Any) -> Any:
        return self.builder.load(self.emitter.pointer(address), typ=kind, align=1)

    def _store(self, address: Int, value: Any) -> None:
        self.builder.store(value, self.emitter.pointer(address), align=1)

    def _first(self, value: Any) -> Any:
        return self.builder.extract_element(value, I32(0))

    def _spread(self, number: Any) -> Vector:
        return Vector(self, self._spread_value(number, self.kind))

    def _spread_value(self, number: Any, kind: Any) -> Any:
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(nothing, number, I32(0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(self.lanes_of(I32), [0] * self.lanes))

    def _folded(self, value: Any) -> Any:
        """8 numbers: the upper half is added to the lower one where there are 16."""
        if self.lanes == _FOLDED_LANES:
            return value
        lower, upper = (list(range(first, first + _FOLDED_LANES)) for first in (0, _FOLDED_LANES))
        return self.builder.fadd(self._shuffled(value, value, lower), self._shuffled(value, value, upper))

    def _pair_sums(self, x: Any, y: Any) -> Any:
        return self.builder.fadd(
            self._shuffled(x, y, [0, 8, 2, 10, 4, 12, 6, 14]),
            self._shuffled(x, y, [1, 9, 3, 11, 5, 13, 7, 15]),
        )

    def _shuffled(self, x: Any, y: Any, lanes: Sequence[int]) -> Any:
        return self.builder.shuffle_vector(x, y, ir.Constant(self.lanes_of(I32, len(lanes)), list(lanes)))


VectorKernel = Callable[..., None]
"""Emits a kernel: takes the function's vector operations, then its arguments."""


_EXP_LOWEST: Final = -87.0
_EXP_HIGHEST: Final = 88.0
_EXP_SERIES: Final = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)


def _nearest_fp32(number: float) -> float:
    """LLVM takes a constant only if it is an fp32 number."""
    nearest: float = struct.unpack("f", struct.pack("f", number))[0]
    return nearest
