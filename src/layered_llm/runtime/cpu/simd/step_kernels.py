"""The kernels that the phases of a step call, for the formats of weights and of keys and values that a model has.

Must not know: phases, threads, what is computed when.
"""

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.cpu.simd.control import WORD_BYTES, TaskWord
from layered_llm.runtime.cpu.simd.kernels.attention import ITEM_PARAMETERS, AttentionKernels, attend_name
from layered_llm.runtime.cpu.simd.kernels.digits import define_write_digits
from layered_llm.runtime.cpu.simd.kernels.emitter import CodeModule, Emitter, Function, Int
from layered_llm.runtime.cpu.simd.kernels.linear import LINEAR_PARAMETERS, LinearKernels, expand_row, linear_name
from layered_llm.runtime.cpu.simd.kernels.pointwise import (
    define_add_bias,
    define_add_norm,
    define_copy,
    define_gated,
    define_rotate,
)
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, VectorModule, Vectors

FORMAT_NUMBERS: Final = {weight_format: number for number, weight_format in enumerate(WeightFormat)}
"""How a task names its format."""


@attrs.frozen(kw_only=True)
class Needs:
    """What a model needs of the kernels: nothing else is generated for it."""

    formats: frozenset[WeightFormat]
    """Of its matrices."""
    kv_number_bytes: int
    """4 for keys and values of fp32, 2 for fp16."""

    def are_met_by(self, program: "Needs") -> bool:
        return self.formats <= program.formats and self.kv_number_bytes == program.kv_number_bytes

    @property
    def has_half_kv(self) -> bool:
        return self.kv_number_bytes != F32_BYTES

    @property
    def ordered_formats(self) -> list[WeightFormat]:
        return [weight_format for weight_format in WeightFormat if weight_format in self.formats]


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
    rotate_query: Function
    """Queries stay fp32, whatever keys are kept as."""
    rotate_key: Function
    copy_value: Function
    attend: Function


def large_kernels(needs: Needs) -> dict[str, Callable[[VectorModule], None]]:
    """By name, what defines and exports each kernel that takes long to compile and that other programs need as it is."""

    def linear(weight_format: WeightFormat) -> Callable[[VectorModule], None]:
        return lambda module: LinearKernels(module=module).define(weight_format).export()

    def attend(module: VectorModule) -> None:
        AttentionKernels(module=module, is_half=needs.has_half_kv).define().export()

    linears = {linear_name(weight_format): linear(weight_format) for weight_format in needs.ordered_formats}
    return {**linears, attend_name(is_half=needs.has_half_kv): attend}


def define_kernels(module: VectorModule, needs: Needs) -> Kernels:
    """The small ones, and the declarations of `large_kernels`."""
    code, is_half = module.code, needs.has_half_kv
    linears = {each: code.imported(linear_name(each), LINEAR_PARAMETERS) for each in needs.ordered_formats}
    rotate_query = define_rotate(module, is_half=False)
    return Kernels(
        task=_define_task(code, linears),
        expand=_define_expand(module, needs.ordered_formats),
        add_norm=define_add_norm(module),
        add_bias=define_add_bias(module),
        gated=define_gated(module),
        write_digits=define_write_digits(module) if module.has_byte_products else None,
        rotate_query=rotate_query,
        rotate_key=define_rotate(module, is_half=True) if is_half else rotate_query,
        copy_value=define_copy(module, is_half=is_half),
        attend=code.imported(attend_name(is_half=is_half), ITEM_PARAMETERS),
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


def _define_expand(module: VectorModule, formats: Sequence[WeightFormat]) -> Function:
    """Writes one weight row as fp32. Arguments: format number, weights, stride, row, columns, target."""

    def emit(v: Vectors, *arguments: Int) -> None:
        number, *rest = arguments

        def case(weight_format: WeightFormat) -> Callable[[], None]:
            return lambda: expand_row(v, weight_format, *rest)

        v.emitter.choose(number, [(FORMAT_NUMBERS[weight_format], case(weight_format)) for weight_format in formats])

    return module.define("expand", emit, 6)
