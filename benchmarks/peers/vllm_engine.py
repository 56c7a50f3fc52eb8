"""vLLM on the CPU, its engine in this process, one step at a time.

VLLM_ENABLE_V1_MULTIPROCESSING=0 python -m benchmarks.peers.vllm_engine DIRECTORY DTYPE

The directory's weights are fp32; DTYPE is what it computes with.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.protocol import Decoded, Setup, Size, serve, weight_file_bytes
from vllm import LLM, SamplingParams

BLOCK_TOKENS = 32
"""The smallest that its attention on the CPU takes."""
FILE_ITEM_BYTES = 4
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
"""Of weights, keys and values."""
SPARE_TOKENS = 64
"""Contexts that begin in an earlier step than others decode a few tokens more."""


class Vllm:
    """The contexts are in its prefix cache."""

    def __init__(self, directory: str, dtype: str, setup: Setup) -> None:
        self._directory = Path(directory)
        self._item_bytes = ITEM_BYTES[dtype]
        self._llm = LLM(
            directory,
            dtype=dtype,
            enforce_eager=True,
            max_model_len=setup.context_tokens,
            max_num_seqs=len(setup.contexts),
            block_size=BLOCK_TOKENS,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )
        self._contexts = setup.contexts
        self._requests = 0
        self.decode(len(setup.contexts), 1)

    def size(self) -> Size:
        weights = weight_file_bytes(self._directory) // FILE_ITEM_BYTES
        return Size(weight_bytes=weights * self._item_bytes, kv_item_bytes=self._item_bytes)

    def decode(self, batch: int, steps: int) -> Decoded:
        """Only steps in which all sequences get a token count."""
        asked = [self._ask(context, steps + SPARE_TOKENS) for context in self._contexts[:batch]]
        lengths = dict.fromkeys(asked, 0)
        token_ids: dict[str, Sequence[int]] = {}
        step_s: list[float] = []
        while len(step_s) < steps:
            started_s = time.perf_counter()
            outputs = self._llm.llm_engine.step()
            elapsed_s = time.perf_counter() - started_s
            if len(outputs) == batch and all(lengths.values()):
                step_s.append(elapsed_s)
            token_ids |= {output.request_id: output.outputs[0].token_ids for output in outputs}
            lengths |= {request: len(ids) for request, ids in token_ids.items()}
        self._llm.llm_engine.abort_request(asked)
        return Decoded(step_s=step_s, token_ids=[list(token_ids[request])[:steps] for request in asked])

    def prefill(self, prompt: Sequence[int]) -> float:
        started_s = time.perf_counter()
        self._ask(prompt, 1)
        while self._llm.llm_engine.has_unfinished_requests():
            self._llm.llm_engine.step()
        return time.perf_counter() - started_s

    def _ask(self, prompt: Sequence[int], tokens: int) -> str:
        self._requests += 1
        request = str(self._requests)
        parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        self._llm.llm_engine.add_request(request, {"prompt_token_ids": list(prompt)}, parameters)
        return request


if __name__ == "__main__":
    serve(lambda setup: Vllm(sys.argv[1], sys.argv[2], setup))
