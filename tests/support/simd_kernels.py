"""The generated kernels one by one, to be called with arrays and numbers."""

import ctypes
import functools
from typing import Any

import attrs
import numpy as np

from layered_llm.runtime.checkpoint.matrices import WeightFormat, WeightMatrix, encoded
from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, Matrix, PanelLayout, byte_panels, has_panels, in_panels
from layered_llm.runtime.cpu.simd.compiler import compile_module, link
from layered_llm.runtime.cpu.simd.kernels.attention import AttentionKernels
from layered_llm.runtime.cpu.simd.kernels.digits import define_write_digits
from layered_llm.runtime.cpu.simd.kernels.emitter import CodeModule, Function
from layered_llm.runtime.cpu.simd.kernels.linear import LinearKernels, expand_row, scratch_floats
from layered_llm.runtime.cpu.simd.kernels.machine import Machine, find_machine
from layered_llm.runtime.cpu.simd.kernels.pointwise import (
    define_add_bias,
    define_add_norm,
    define_copy,
    define_gated,
    define_rotate,
)
from layered_llm.runtime.cpu.simd.kernels.vectors import VectorModule, Vectors
from layered_llm.runtime.cpu.simd.memory_blocks import address_of
from layered_llm.runtime.cpu.simd.support import panels_for
from layered_llm.runtime.device.step_inputs import Float32s

_F32_BYTES = 4


@attrs.frozen
class KernelSet:
    """Calls a kernel by its name; arrays are passed by their addresses."""

    _library: Any
    _addresses: Any

    def __call__(self, name: str, *arguments: Any) -> None:
        values = [address_of(each) if isinstance(each, np.ndarray) else int(each) for each in arguments]
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))(self._addresses[name])(*values)


def this_machine() -> Machine:
    machine = find_machine()
    assert isinstance(machine, Machine), machine
    return machine


@attrs.frozen
class Kind:
    """What kernels are generated for."""

    lanes: int
    registers: int
    has_byte_products: bool = False

    @property
    def panels(self) -> PanelLayout:
        return byte_panels(self.lanes) if self.has_byte_products else FLOAT_PANELS

    def __str__(self) -> str:
        return f"{self.lanes} lanes, {self.registers} registers{', bytes' if self.has_byte_products else ''}"


LANES = [8] if this_machine().lanes == 8 else [8, 16]
"""The sizes of vectors that this machine can compute with."""
_FLOAT_KINDS = [Kind(8, 16)] if this_machine().lanes == 8 else [Kind(8, 16), Kind(8, 32), Kind(16, 32)]
"""Models whose sizes fill no wide vector use narrow ones in 32 registers."""
_BYTE_KINDS = [attrs.evolve(kind, has_byte_products=True) for kind in _FLOAT_KINDS]
KINDS = [*_FLOAT_KINDS, *_BYTE_KINDS] if this_machine().has_byte_products else _FLOAT_KINDS


def kernels(lanes: int) -> KernelSet:
    """Compiled for this machine with vectors of so many numbers, and as many registers as usual with them."""
    return kernels_for(Kind(lanes, 2 * lanes))


@functools.cache
def kernels_for(kind: Kind) -> KernelSet:
    """Compiled for this machine."""
    module = VectorModule(
        code=CodeModule.create(), lanes=kind.lanes, registers=kind.registers, has_byte_products=kind.has_byte_products
    )
    linear = LinearKernels(module=module)
    defined = [linear.define(weight_format) for weight_format in WeightFormat]
    for is_half in (False, True):
        defined += [AttentionKernels(module=module, is_half=is_half).define()]
        defined += [define_rotate(module, is_half=is_half), define_copy(module, is_half=is_half)]
    defined += [define_add_norm(module), define_gated(module), define_add_bias(module), _define_exp(module)]
    defined += [define_write_digits(module)]
    defined += [_define_expand(module, weight_format) for weight_format in WeightFormat]
    for function in defined:
        function.export()
    names = [function.function.name for function in defined]
    return KernelSet(*link([compile_module(module.code, this_machine())], names, this_machine()))


def _define_exp(module: VectorModule) -> Function:
    def emit(v: Vectors, *arguments: Any) -> None:
        x, y, count = arguments
        with v.emitter.loop(0, count * _F32_BYTES, v.vector_bytes) as offset:
            v.store(y + offset, v.exp(v.load(x + offset)))

    return module.define("exp", emit, 3)


def _define_expand(module: VectorModule, weight_format: WeightFormat) -> Function:
    def emit(v: Vectors, *arguments: Any) -> None:
        expand_row(v, weight_format, *arguments)

    return module.define(f"expand_{weight_format.label}", emit, 5)


def random_matrix(rng: np.random.Generator, weight_format: WeightFormat, rows: int, columns: int) -> WeightMatrix:
    """Weights of every code and of scales around 0.05."""
    values = rng.normal(0, 0.1, (rows, columns)).astype(np.float32)
    if weight_format not in {WeightFormat.Q4_0, WeightFormat.Q4_1}:
        return encoded(values, weight_format)
    blocks = columns // weight_format.block_columns
    data = rng.integers(0, 256, (rows, blocks, weight_format.block_bytes), dtype=np.uint8)
    scales = weight_format.block_bytes - 16
    data[..., :scales] = rng.normal(0, 0.05, (rows, blocks, scales // 2)).astype(np.float16).view(np.uint8)
    return WeightMatrix(format=weight_format, rows=rows, columns=columns, data=data.reshape(rows, -1))


def arranged(matrix: WeightMatrix, layout: PanelLayout | None = None) -> Matrix:
    """As the kernels read it, if no other layout is given those for this machine."""
    return in_panels(matrix, layout or panels_for(this_machine()), lambda count: np.empty(count, np.uint8))


def prepared(kind: Kind, x: Float32s, weight_format: WeightFormat) -> Float32s:
    """A copy of activations as kernels for weights of this format read them."""
    result = x.copy()
    if kind.has_byte_products and has_panels(weight_format):
        for row in result:
            kernels_for(kind)("write_digits", row, len(row))
    return result


def multiply(kind: Kind, x: Float32s, matrix: WeightMatrix) -> Float32s:
    """x W^T by the kernel."""
    x = prepared(kind, x, matrix.format)
    y = np.full((len(x), matrix.rows), np.nan, np.float32)
    scratch = np.empty(scratch_floats(matrix.rows, matrix.columns), np.float32)
    weights = arranged(matrix, kind.panels).data
    operands = (x, x.strides[0], weights, weights.strides[0], matrix.columns, y, y.strides[0])
    kernels_for(kind)(f"linear_{matrix.format.label}", *operands, len(x), matrix.rows, scratch)
    return y
