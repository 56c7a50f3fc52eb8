"""A small language for writing kernels: integers, loops and branches as Python expressions that emit LLVM instructions.

Must not know: vectors, kernels, how code is compiled.

A kernel is a Python function that runs once, when code is generated. Its `if`s and `for`s decide what is generated; what the
machine decides is written with `loop`, `when` and `Variable`. All arguments of generated functions are 64-bit integers:
addresses in bytes, counts, strides in bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
from llvmlite import ir

I1: Final = ir.IntType(1)
I8: Final = ir.IntType(8)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
POINTER: Final = ir.PointerType()


@attrs.frozen(eq=False)
class Bool:
    """A condition that the machine evaluates."""

    emitter: "Emitter"
    value: Any

    def __and__(self, other: "Bool") -> "Bool":
        return Bool(self.emitter, self.emitter.builder.and_(self.value, other.value))

    def choose(self, yes: "Int | int", no: "Int | int") -> "Int":
        """One of two numbers, both of which are computed."""
        emitter = self.emitter
        chosen = emitter.builder.select(self.value, emitter.integer(yes).value, emitter.integer(no).value)
        return Int(emitter, chosen)


@attrs.frozen(eq=False)
class Int:
    """A 64-bit integer that the machine computes. Division is unsigned."""

    emitter: "Emitter"
    value: Any

    def __add__(self, other: "Int | int") -> "Int":
        return self._binary(self.emitter.builder.add, other)

    def __sub__(self, other: "Int | int") -> "Int":
        return self._binary(self.emitter.builder.sub, other)

    def __mul__(self, other: "Int | int") -> "Int":
        return self._binary(self.emitter.builder.mul, other)

    def __floordiv__(self, other: "Int | int") -> "Int":
        return self._binary(self.emitter.builder.udiv, other)

    def __mod__(self, other: "Int | int") -> "Int":
        return self._binary(self.emitter.builder.urem, other)

    def __and__(self, other: "Int | int") -> "Int":
        return self._binary(self.emitter.builder.and_, other)

    def __lt__(self, other: "Int | int") -> Bool:
        return self._compared("<", other)

    def __le__(self, other: "Int | int") -> Bool:
        return self._compared("<=", other)

    def __gt__(self, other: "Int | int") -> Bool:
        return self._compared(">", other)

    def __ge__(self, other: "Int | int") -> Bool:
        return self._compared(">=", other)

    def equals(self, other: "Int | int") -> Bool:
        return self._compared("==", other)

    def differs(self, other: "Int | int") -> Bool:
        return self._compared("!=", other)

    def minimum(self, other: "Int | int") -> "Int":
        return (self < other).choose(self, other)

    def maximum(self, other: "Int | int") -> "Int":
        return (self > other).choose(self, other)

    def _binary(self, operation: Callable[[Any, Any], Any], other: "Int | int") -> "Int":
        return Int(self.emitter, operation(self.value, self.emitter.integer(other).value))

    def _compared(self, operator: str, other: "Int | int") -> Bool:
        right = self.emitter.integer(other).value
        return Bool(self.emitter, self.emitter.builder.icmp_signed(operator, self.value, right))


@attrs.frozen(eq=False)
class Variable:
    """An integer that loops change; the optimiser keeps it in a register."""

    emitter: "Emitter"
    place: Any

    def get(self) -> Int:
        return Int(self.emitter, self.emitter.builder.load(self.place, typ=I64))

    def set(self, value: Int | int) -> None:
        self.emitter.builder.store(self.emitter.integer(value).value, self.place)


@attrs.frozen(eq=False)
class Emitter:
    """Emits the instructions of one function."""

    builder: Any
    _entry: Any
    """Where stack places are made: the function's first block, which holds nothing else."""

    def integer(self, value: Int | int) -> Int:
        return value if isinstance(value, Int) else Int(self, I64(value))

    def variable(self, value: Int | int) -> Variable:
        result = Variable(self, self.stack_place(I64))
        result.set(value)
        return result

    def stack_place(self, kind: Any) -> Any:
        """Room for one value in the function's frame."""
        return self._entry.alloca(kind)

    def stack_bytes(self, count: int) -> Int:
        """The address of so many bytes in the function's frame."""
        return Int(self, self.builder.ptrtoint(self.stack_place(ir.ArrayType(I8, count)), I64))

    def pointer(self, address: Int) -> Any:
        return self.builder.inttoptr(address.value, POINTER)

    def load_int(self, address: Int) -> Int:
        return Int(self, self.builder.load(self.pointer(address), typ=I64, align=8))

    def store_int(self, address: Int, value: Int | int) -> None:
        self.builder.store(self.integer(value).value, self.pointer(address), align=8)

    def load_int32(self, address: Int) -> Int:
        narrow = self.builder.load(self.pointer(address), typ=I32, align=4)
        return Int(self, self.builder.sext(narrow, I64))

    def store_int32(self, address: Int, value: Int) -> None:
        """The lower half of `value`."""
        self.builder.store(self.builder.trunc(value.value, I32), self.pointer(address), align=4)

    @contextmanager
    def loop(self, start: Int | int, stop: Int | int, step: Int | int = 1) -> Iterator[Int]:
        """For `start`, `start + step` … while less than `stop`."""
        builder = self.builder
        head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        before = builder.block
        builder.branch(head)
        builder.position_at_end(head)
        counter = builder.phi(I64)
        counter.add_incoming(self.integer(start).value, before)
        index = Int(self, counter)
        builder.cbranch((index < stop).value, body, after)
        builder.position_at_end(body)
        yield index
        counter.add_incoming((index + step).value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)

    @contextmanager
    def when(self, condition: Bool) -> Iterator[None]:
        with self.builder.if_then(condition.value):
            yield

    @contextmanager
    def repeat_while(self, condition: Callable[[], Bool]) -> Iterator[None]:
        """`condition` is emitted once, and evaluated before each round."""
        builder = self.builder
        head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(condition().value, body, after)
        builder.position_at_end(body)
        yield
        builder.branch(head)
        builder.position_at_end(after)

    def choose(self, selector: Int, cases: Sequence[tuple[int, Callable[[], None]]]) -> None:
        """Emits each case; the machine runs the one whose number `selector` is, or none."""
        builder = self.builder
        after = builder.append_basic_block("after")
        branch = builder.switch(selector.value, after)
        for number, emit in cases:
            block = builder.append_basic_block("case")
            branch.add_case(I64(number), block)
            builder.position_at_end(block)
            emit()
            builder.branch(after)
        builder.position_at_end(after)


@attrs.frozen(eq=False)
class Function:
    """A generated function; calling it emits a call."""

    function: Any

    def __call__(self, *arguments: Int | int) -> None:
        emitter = next(argument.emitter for argument in arguments if isinstance(argument, Int))
        emitter.builder.call(self.function, [emitter.integer(argument).value for argument in arguments])

    def export(self) -> None:
        """Modules that are linked with this one may call it."""
        self.function.linkage = ""


@attrs.frozen(eq=False)
class CodeModule:
    """The functions that are compiled together."""

    module: Any

    @classmethod
    def create(cls) -> "CodeModule":
        return cls(ir.Module(name="layered_llm"))

    def intrinsic(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """LLVM's intrinsic `name`, declared once."""
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def imported(self, name: str, parameters: int) -> Function:
        """A function that another module exports."""
        return Function(ir.Function(self.module, ir.FunctionType(ir.VoidType(), [I64] * parameters), name))

    def function(self, name: str, emit: Callable[..., None], parameters: int, *, exported: bool = False) -> Function:
        """Generates `name` by running `emit(emitter, *arguments)`."""
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [I64] * parameters), name)
        function.attributes.add("noinline")
        if not exported:
            function.linkage = "internal"
        entry = function.append_basic_block("entry")
        body = function.append_basic_block("body")
        emitter = Emitter(ir.IRBuilder(body), ir.IRBuilder(entry))
        emit(emitter, *(Int(emitter, argument) for argument in function.args))
        emitter.builder.ret_void()
        ir.IRBuilder(entry).branch(body)
        return Function(function)
