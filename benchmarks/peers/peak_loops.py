"""Machine code that does nothing but multiply and add, or nothing but read: what no kernel on this processor can exceed."""

import ctypes
from collections.abc import Callable
from typing import Final

from llvmlite import binding

from layered_llm.runtime.cpu.simd.compiler import compile_module, link
from layered_llm.runtime.cpu.simd.kernels.emitter import CodeModule, Int
from layered_llm.runtime.cpu.simd.kernels.machine import Machine
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, Accumulator, Vector, VectorModule, Vectors

MULTIPLY_CHAINS: Final = 12
"""Independent sums: more than units times latency of an FMA on x86-64, and with both factors few enough for 16 registers."""
READ_STREAMS: Final = 8
READ_LANES: Final = 8
READ_BLOCK_BYTES: Final = READ_STREAMS * READ_LANES * F32_BYTES


class PeakLoops:
    """Both loops, compiled for this processor, even one that the kernels are not for. Calls let other Python threads run."""

    def __init__(self) -> None:
        machine, has_fma = _processor()
        self.flops_per_turn: Final = 2 * machine.lanes * MULTIPLY_CHAINS
        code = CodeModule.create()
        _define_multiply(
            VectorModule(code=code, lanes=machine.lanes, registers=machine.registers, has_byte_products=False), has_fma=has_fma
        )
        _define_read(VectorModule(code=code, lanes=READ_LANES, registers=machine.registers, has_byte_products=False))
        self._library, addresses = link([compile_module(code, machine)], ("multiply", "read"), machine)
        self._multiply = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(addresses["multiply"])
        self._read = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(addresses["read"])
        self._results = ctypes.create_string_buffer(F32_BYTES * max(machine.lanes, READ_LANES))

    def multiply(self, turns: int) -> None:
        """Of fp32 numbers in registers, `flops_per_turn` operations a turn."""
        self._multiply(ctypes.addressof(self._results), turns)

    def read(self, address: int, size_bytes: int) -> None:
        """Once, in order; both are multiples of READ_BLOCK_BYTES."""
        self._read(ctypes.addressof(self._results), address, address + size_bytes)


def _processor() -> tuple[Machine, bool]:
    """This one, and whether it multiplies and adds in one operation; where LLVM lists no such feature, all processors do."""
    features = binding.get_host_cpu_features()
    lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
    machine = Machine(
        processor=binding.get_host_cpu_name(), features=features.flatten(), lanes=lanes, registers=16, has_byte_products=False
    )
    return machine, features.get("fma", True)


def _define_multiply(module: VectorModule, *, has_fma: bool) -> None:
    """The factor and the term come from memory, so that nothing is known of them when this is compiled."""

    def emit(v: Vectors, out: Int, turns: Int) -> None:
        factor = v.load(out)
        sums = [v.accumulator(factor) for _ in range(MULTIPLY_CHAINS)]
        with v.emitter.loop(0, turns):
            _add_to_each(sums, lambda one, _: v.fma(one, factor, factor) if has_fma else one * factor + factor)
        _keep(v, sums, out)

    module.define("multiply", emit, 2, exported=True)


def _define_read(module: VectorModule) -> None:
    def emit(v: Vectors, out: Int, begin: Int, end: Int) -> None:
        sums = [v.accumulator() for _ in range(READ_STREAMS)]
        with v.emitter.loop(begin, end, READ_BLOCK_BYTES) as address:
            _add_to_each(sums, lambda one, number: one + v.load(address + v.vector_bytes * number))
        _keep(v, sums, out)

    module.define("read", emit, 3, exported=True)


def _add_to_each(sums: list[Accumulator], added: Callable[[Vector, int], Vector]) -> None:
    for number, one in enumerate(sums):
        one.set(added(one.get(), number))


def _keep(v: Vectors, sums: list[Accumulator], out: Int) -> None:
    """Keeps the result, without which there would be no loop."""
    total, *others = (one.get() for one in sums)
    for other in others:
        total += other
    v.store(out, total)
