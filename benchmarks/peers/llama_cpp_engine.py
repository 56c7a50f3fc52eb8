"""llama.cpp, through the low-level interface of llama-cpp-python: one `llama_decode` for all sequences of a step.

python -m benchmarks.peers.llama_cpp_engine FILE.gguf
"""

import ctypes
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from benchmarks.peers.protocol import Decoded, Setup, Size, serve

LONGEST_BATCH_TOKENS = 512
"""llama.cpp's own defaults: n_ubatch, and F16 for keys and values."""
KV_ITEM_BYTES = 2


class LlamaCpp:
    """A sequence for each context, and one more for long prompts."""

    def __init__(self, path: str, setup: Setup) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_load_model_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self._context = llama_cpp.llama_new_context_with_model(self._model, _context_parameters(setup))
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(LONGEST_BATCH_TOKENS, 0, 1)
        self._contexts = setup.contexts
        self._spare = len(setup.contexts)
        for sequence, ids in enumerate(setup.contexts):
            self._compute([(token, position, sequence) for position, token in enumerate(ids)], sampled=[len(ids) - 1])

    def size(self) -> Size:
        return Size(weight_bytes=llama_cpp.llama_model_size(self._model), kv_item_bytes=KV_ITEM_BYTES)

    def decode(self, batch: int, steps: int) -> Decoded:
        position = len(self._contexts[0]) - 1
        for sequence in range(batch):
            self._forget(sequence, position)
        token_ids = [[ids[-1]] for ids in self._contexts[:batch]]
        step_s = []
        for _ in range(steps):
            started_s = time.perf_counter()
            rows = [(ids[-1], position, sequence) for sequence, ids in enumerate(token_ids)]
            for ids, token in zip(token_ids, self._compute(rows, sampled=range(batch)), strict=True):
                ids.append(token)
            step_s.append(time.perf_counter() - started_s)
            position += 1
        return Decoded(step_s=step_s, token_ids=[ids[1:] for ids in token_ids])

    def prefill(self, prompt: Sequence[int]) -> float:
        self._forget(self._spare, 0)
        started_s = time.perf_counter()
        self._compute([(token, position, self._spare) for position, token in enumerate(prompt)], sampled=[len(prompt) - 1])
        return time.perf_counter() - started_s

    def _forget(self, sequence: int, position: int) -> None:
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), sequence, position, -1)

    def _compute(self, rows: Sequence[tuple[int, int, int]], *, sampled: Sequence[int]) -> list[int]:
        """Computes rows of (token, position, sequence); the likeliest next token behind each of `sampled`."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
            batch.logits[row] = 0
        for row in sampled:
            batch.logits[row] = 1
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise SystemExit(f"llama_decode: {status}")
        return [int(np.argmax(self._logits(row))) for row in sampled]

    def _logits(self, row: int) -> Any:
        pointer = ctypes.cast(llama_cpp.llama_get_logits_ith(self._context, row), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (self._vocabulary,))


def _context_parameters(setup: Setup) -> Any:
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_seq_max = len(setup.contexts) + 1
    parameters.n_ctx = setup.context_tokens * parameters.n_seq_max
    parameters.n_batch = parameters.n_ubatch = LONGEST_BATCH_TOKENS
    parameters.n_threads = parameters.n_threads_batch = setup.threads
    return parameters


if __name__ == "__main__":
    serve(lambda setup: LlamaCpp(sys.argv[1], setup))
