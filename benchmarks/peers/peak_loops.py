"""Machine code that does nothing but multiply and add, or nothing but read: what no kernel on this processor can exceed."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import binding, ir

MULTIPLY_CHAINS: Final = 12
"""Independent sums: more than units times latency of an FMA on x86-64, and with both factors few enough for 16 registers."""
READ_STREAMS: Final = 8
READ_LANES: Final = 8
READ_BLOCK_BYTES: Final = READ_STREAMS * READ_LANES * 4
_INDEX: Final = ir.IntType(64)
_FLOAT: Final = ir.FloatType()
_ITEM: Final = ir.IntType(32)


class PeakLoops:
    """Both loops, compiled for this processor. Calls leave other Python threads running."""

    def __init__(self) -> None:
        features = binding.get_host_cpu_features()
        lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
        self.flops_per_turn: Final = 2 * lanes * MULTIPLY_CHAINS
        module = ir.Module()
        _define_multiply(module, lanes)
        _define_read(module)
        self._engine = _compiled(module, features.flatten())
        self._results = ctypes.create_string_buffer(4 * lanes)
        self._multiply = self._function("multiply", _INDEX)
        self._read = self._function("read", _INDEX, _INDEX)

    def multiply(self, turns: int) -> None:
        """Of fp32 numbers in registers, `flops_per_turn` operations a turn."""
        self._multiply(turns)

    def read(self, address: int, size_bytes: int) -> None:
        """Once, in order; both are multiples of READ_BLOCK_BYTES."""
        self._read(address, address + size_bytes)

    def _function(self, name: str, *arguments: Any) -> Callable[..., None]:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, *(ctypes.c_int64 for _ in arguments))
        function = kind(self._engine.get_function_address(name))
        out = ctypes.addressof(self._results)
        return lambda *given: function(out, *given)


def _define_multiply(module: ir.Module, lanes: int) -> None:
    """The factor and the term come from memory, so that nothing is known of them when this is compiled."""
    vector = ir.VectorType(_FLOAT, lanes)
    builder, (out, turns) = _begin(module, "multiply", count=2)
    target = builder.inttoptr(out, vector.as_pointer())
    factor = builder.load(target, align=4)
    start = builder.block
    loop = builder.append_basic_block("loop")
    builder.branch(loop)
    builder.position_at_end(loop)
    turn = builder.phi(_INDEX)
    sums = [builder.phi(vector) for _ in range(MULTIPLY_CHAINS)]
    added = [builder.fadd(builder.fmul(one, factor, ("contract",)), factor, ("contract",)) for one in sums]
    for one, after in zip(sums, added, strict=True):
        one.add_incoming(factor, start)
        one.add_incoming(after, loop)
    _repeat(builder, turn, (_INDEX(0), start), step=1, end=turns)
    _finish(builder, added, builder.fadd, target)


def _define_read(module: ir.Module) -> None:
    vector = ir.VectorType(_ITEM, READ_LANES)
    builder, (out, begin, end) = _begin(module, "read", count=3)
    start = builder.block
    loop = builder.append_basic_block("loop")
    builder.branch(loop)
    builder.position_at_end(loop)
    address = builder.phi(_INDEX)
    sums = [builder.phi(vector) for _ in range(READ_STREAMS)]
    pointer = builder.inttoptr(address, vector.as_pointer())
    added = []
    for number, one in enumerate(sums):
        after = builder.or_(one, builder.load(builder.gep(pointer, [_INDEX(number)]), align=READ_LANES * 4))
        one.add_incoming(ir.Constant(vector, [0] * READ_LANES), start)
        one.add_incoming(after, loop)
        added.append(after)
    _repeat(builder, address, (begin, start), step=READ_BLOCK_BYTES, end=end)
    first = builder.extract_element(_folded(added, builder.or_), _INDEX(0))
    builder.store(first, builder.inttoptr(out, _ITEM.as_pointer()))
    builder.ret_void()


def _begin(module: ir.Module, name: str, *, count: int) -> tuple[ir.IRBuilder, Sequence[Any]]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_INDEX] * count), name)
    return ir.IRBuilder(function.append_basic_block("start")), function.args


def _repeat(builder: ir.IRBuilder, counter: Any, first: tuple[Any, Any], *, step: int, end: Any) -> None:
    """Ends the loop that `builder` is in; `first` are the counter's value and the block from which it is entered."""
    loop = builder.block
    following = builder.add(counter, _INDEX(step))
    counter.add_incoming(*first)
    counter.add_incoming(following, loop)
    done = builder.append_basic_block("done")
    builder.cbranch(builder.icmp_unsigned("<", following, end), loop, done)
    builder.position_at_end(done)


def _finish(builder: ir.IRBuilder, values: Sequence[Any], add: Callable[[Any, Any], Any], target: Any) -> None:
    """Keeps the result, without which there would be no loop."""
    builder.store(_folded(values, add), target, align=4)
    builder.ret_void()


def _folded(values: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    total, *others = values
    for value in others:
        total = add(total, value)
    return total


def _compiled(module: ir.Module, features: str) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    machine = target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    return engine
