"""The kernels that the phases of a step call, for all formats of weights and of keys and values.

Must not know: phases, threads, what is computed when.
"""

from collections.abc import Callable
from typing import Final

import attrs

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.attention import AttentionKernels
from layered_llm.runtime.simd.control import WORD_BYTES, TaskWord
from layered_llm.runtime.simd.digits import define_write_digits
from layered_llm.runtime.simd.emitter import CodeModule, Emitter, Function, Int
from layered_llm.runtime.simd.linear import LinearKernels, expand_row
from layered_llm.runtime.simd.pointwise import define_add_bias, define_add_norm, define_gated
from layered_llm.runtime.simd.rotation import define_copy, define_rotate
from layered_llm.runtime.simd.vectors import F32_BYTES, VectorModule, Vectors

FORMAT_NUMBERS: Final = {weight_format: number for number, weight_format in enumerate(WeightFormat)}
"""How a task names its format."""


@attrs.frozen(kw_only=True, eq=False)
class Kernels:
    """The functions that phases call."""

    task: Function
    expand: Function
    add_norm: Function
    add_bias: Function
    gated: Function
    write_digits: Function | None
    """None where no task takes digits."""
    rotate: dict[int, Function]
    """By the bytes of a number, as `copy` and `attend`."""
    copy: dict[int, Function]
    attend: dict[int, Function]


def define_kernels(module: VectorModule) -> Kernels:
    linear = LinearKernels(module=module)
    by_bytes = {F32_BYTES: False, 2: True}
    return Kernels(
        task=_define_task(module.code, {weight_format: linear.define(weight_format) for weight_format in WeightFormat}),
        expand=_define_expand(module),
        add_norm=define_add_norm(module),
        add_bias=define_add_bias(module),
        gated=define_gated(module),
        write_digits=define_write_digits(module) if module.has_byte_products else None,
        rotate={size: define_rotate(module, is_half=is_half) for size, is_half in by_bytes.items()},
        copy={size: define_copy(module, is_half=is_half) for size, is_half in by_bytes.items()},
        attend={size: AttentionKernels(module=module, is_half=is_half).define() for size, is_half in by_bytes.items()},
    )


def _define_task(module: CodeModule, linears: dict[WeightFormat, Function]) -> Function:
    """Multiplies all tokens with the rows of one task, without bias.

    Arguments: task, x, columns, y (the first row's result for the first token), y_stride, tokens, scratch.
    """

    def emit(k: Emitter, *arguments: Int) -> None:
        task, x, columns, y, y_stride, tokens, scratch = arguments
        weights, stride, rows = (
            k.load_int(task + WORD_BYTES * name) for name in (TaskWord.WEIGHTS, TaskWord.STRIDE, TaskWord.ROWS)
        )

        def call(function: Function) -> Callable[[], None]:
            return lambda: function(x, columns * F32_BYTES, weights, stride, columns, y, y_stride, tokens, rows, scratch)

        cases = [(FORMAT_NUMBERS[weight_format], call(function)) for weight_format, function in linears.items()]
        k.choose(k.load_int(task + WORD_BYTES * TaskWord.FORMAT), cases)

    return module.function("task", emit, 7)


def _define_expand(module: VectorModule) -> Function:
    """Writes one weight row as fp32. Arguments: format number, weights, stride, row, columns, target."""

    def emit(v: Vectors, *arguments: Int) -> None:
        number, *rest = arguments

        def case(weight_format: WeightFormat) -> Callable[[], None]:
            return lambda: expand_row(v, weight_format, *rest)

        v.emitter.choose(number, [(FORMAT_NUMBERS[weight_format], case(weight_format)) for weight_format in WeightFormat])

    return module.define("expand", emit, 6)
