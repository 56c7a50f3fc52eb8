"""What the threads of a step share: a barrier, and counters from which they take their work.

Must not know: what the work is, kernels.

Who waits spins for a moment and then sleeps in the kernel (futex), so that waiting never takes a core from whoever needs it:
the other threads of the step, or another process. Each thread begins with a stretch of the work that is its own, so that it
reads memory from one end to the other, and then helps the others. Work is taken in small portions, so that a thread whose core
is taken away leaves the rest of its work to them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from llvmlite import ir

from layered_llm.runtime.cpu.simd.control import WORD_BYTES, Word
from layered_llm.runtime.cpu.simd.kernels.emitter import I64, CodeModule, Emitter, Int
from layered_llm.runtime.cpu.simd.kernels.machine import LINE_BYTES

_SYS_FUTEX: Final = 202
"""On x86-64, the only machine for which these kernels are generated."""
_FUTEX_WAIT_PRIVATE: Final = 128
_FUTEX_WAKE_PRIVATE: Final = 129
_ALL: Final = 1 << 30
_SPINS: Final = 2000
"""Rounds of waiting before a thread sleeps, some 50 µs: longer than threads that share work evenly wait for each other."""
_PORTIONS_PER_THREAD: Final = 8


def word(k: Emitter, control: Int, name: Word) -> Int:
    """The value of `name` in the control words at `control`."""
    return k.load_int(control + WORD_BYTES * name)


def emit_barrier(module: CodeModule, k: Emitter, control: Int, thread: Int) -> None:
    """Returns when all threads of the step have come here."""
    generation_at = control + WORD_BYTES * Word.GENERATION
    generation = _load_atomic(k, generation_at)
    k.store_int(_counter(k, control, generation + 1, thread), 0)
    arrived = _add_atomic(k, control + WORD_BYTES * Word.ARRIVED, 1)
    is_last = arrived.equals(word(k, control, Word.THREADS) - 1)
    with k.builder.if_else(is_last.value) as (last, others):
        with last:
            k.store_int(control + WORD_BYTES * Word.ARRIVED, 0)
            _store_atomic(k, generation_at, generation + 1)
            with k.when(_load_atomic(k, control + WORD_BYTES * Word.SLEEPERS) > 0):
                _futex(k, control, generation_at, _FUTEX_WAKE_PRIVATE, _ALL)
        with others:
            _wait(module, k, control, generation)


def _counter(k: Emitter, control: Int, generation: Int, thread: Int) -> Int:
    """Where it is counted how much of the thread's stretch has been taken, since this generation began.

    There are two for each thread: while one is counted with, nobody uses the other, and its thread rewinds it.
    """
    number = generation % 2 * word(k, control, Word.THREADS) + thread
    return word(k, control, Word.COUNTERS) + number * LINE_BYTES


def _wait(module: CodeModule, k: Emitter, control: Int, generation: Int) -> None:
    """Until the generation is another one."""
    generation_at, sleepers_at = control + WORD_BYTES * Word.GENERATION, control + WORD_BYTES * Word.SLEEPERS
    pause = module.intrinsic("llvm.x86.sse2.pause", ir.VoidType(), [])
    spins = k.variable(0)
    with k.repeat_while(lambda: _load_atomic(k, generation_at).equals(generation) & (spins.get() < _SPINS)):
        k.builder.call(pause, [])
        spins.set(spins.get() + 1)
    with k.when(_load_atomic(k, generation_at).equals(generation)):
        _add_atomic(k, sleepers_at, 1)
        with k.repeat_while(lambda: _load_atomic(k, generation_at).equals(generation)):
            _futex(k, control, generation_at, _FUTEX_WAIT_PRIVATE, generation)
        _add_atomic(k, sleepers_at, -1)


@contextmanager
def shared_work(k: Emitter, control: Int, thread: Int, count: Int) -> Iterator[Int]:
    """For each number below `count` that this thread takes; each is taken by one thread. Once between two barriers, at most.

    Others' counters are read before they are added to: a line that all threads write costs each of them more.
    """
    generation, threads = _load_atomic(k, control + WORD_BYTES * Word.GENERATION), word(k, control, Word.THREADS)
    portion = (count // (threads * _PORTIONS_PER_THREAD)).maximum(1)
    with k.loop(thread, thread + threads) as turn:
        owner = turn % threads
        counter, end = _counter(k, control, generation, owner), count * (owner + 1) // threads
        start = count * owner // threads
        first = k.variable(start + _load_atomic(k, counter))
        with k.repeat_while(lambda: first.get() < end):
            first.set(start + _add_atomic(k, counter, portion))
            with k.loop(first.get(), (first.get() + portion).minimum(end)) as number:
                yield number


def _load_atomic(k: Emitter, address: Int) -> Int:
    return Int(k, k.builder.load_atomic(k.pointer(address), "seq_cst", 8, typ=I64))


def _store_atomic(k: Emitter, address: Int, value: Int) -> None:
    k.builder.atomic_rmw("xchg", k.pointer(address), value.value, "seq_cst")


def _add_atomic(k: Emitter, address: Int, amount: Int | int) -> Int:
    """The value before."""
    return Int(k, k.builder.atomic_rmw("add", k.pointer(address), k.integer(amount).value, "seq_cst"))


def _futex(k: Emitter, control: Int, address: Int, operation: int, value: Int | int) -> None:
    """The system call, through the C library's `syscall`, whose address is a control word."""
    number, nothing = k.integer(_SYS_FUTEX), k.integer(0)
    arguments = [number, address, k.integer(operation), k.integer(value), nothing, nothing, nothing]
    signature = ir.FunctionType(I64, [I64] * len(arguments))
    syscall = k.builder.inttoptr(word(k, control, Word.SYSCALL).value, signature.as_pointer())
    k.builder.call(syscall, [argument.value for argument in arguments])
