"""What the functions of a step's program know: the control words, and which thread they run in.

Must not know: phases, kernels.
"""

from contextlib import AbstractContextManager

import attrs

from layered_llm.runtime.cpu.simd.control import WORD_BYTES, LayerWord, Word
from layered_llm.runtime.cpu.simd.kernels.emitter import CodeModule, Emitter, Int
from layered_llm.runtime.cpu.simd.synchronization import emit_barrier, shared_work, word


@attrs.frozen(eq=False)
class Words:
    """The control words of a function, read where they are needed."""

    emitter: Emitter
    control: Int
    thread: Int

    def __getitem__(self, name: Word) -> Int:
        return word(self.emitter, self.control, name)

    def address(self, name: Word) -> Int:
        """Where the word itself lies."""
        return self.control + WORD_BYTES * name

    @property
    def scratch(self) -> Int:
        """The thread's own."""
        return self[Word.SCRATCH] + self.thread * self[Word.SCRATCH_BYTES]

    def shared_work(self, count: Int) -> AbstractContextManager[Int]:
        """For each number below `count` that the thread takes."""
        return shared_work(self.emitter, self.control, self.thread, count)

    def barrier(self, module: CodeModule) -> None:
        emit_barrier(module, self.emitter, self.control, self.thread)

    def of_layer(self, row: Int, *names: LayerWord) -> tuple[Int, ...]:
        """Words of a row of the layer table."""
        return tuple(self.emitter.load_int(row + WORD_BYTES * name) for name in names)

    def head_place(self, number: Int) -> Int:
        """Of a token that the head is for, among all tokens of the step."""
        return self.emitter.load_int(self[Word.HEAD_PLACES] + number * WORD_BYTES)

    @property
    def query_size(self) -> Int:
        return self[Word.HEADS] * self[Word.HEAD_DIM]

    @property
    def group(self) -> Int:
        return self[Word.HEADS] // self[Word.KV_HEADS]

    @property
    def page_bytes(self) -> Int:
        """A page of one layer."""
        return self[Word.KV_HEADS] * self.head_page_bytes

    @property
    def head_page_bytes(self) -> Int:
        """Keys and values of one head in a page."""
        return self[Word.PAGE_SIZE] * self.kv_row_bytes * 2

    @property
    def kv_row_bytes(self) -> Int:
        return self[Word.HEAD_DIM] * self[Word.KV_NUMBER_BYTES]
