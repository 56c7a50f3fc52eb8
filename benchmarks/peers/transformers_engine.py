"""transformers: `generate` on top of a cache that holds the contexts.

python -m benchmarks.peers.transformers_engine DIRECTORY
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.peers.protocol import Decoded, Setup, Size, serve
from transformers import AutoModelForCausalLM, DynamicCache


class Clock:
    """A stopping criterion that stops nothing: `generate` asks it after each token."""

    def __init__(self) -> None:
        self.times_s = [time.perf_counter()]

    def __call__(self, token_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        self.times_s.append(time.perf_counter())
        return torch.zeros(token_ids.shape[0], dtype=torch.bool)


class Transformers:
    """All contexts are of one length, so no batch needs padding."""

    def __init__(self, directory: str, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._contexts = torch.tensor(setup.contexts)
        self._caches: dict[int, Any] = {}

    def size(self) -> Size:
        weights = sum(tensor.numel() * tensor.element_size() for tensor in self._model.parameters())
        return Size(weight_bytes=weights, kv_item_bytes=self._model.dtype.itemsize)

    def decode(self, batch: int, steps: int) -> Decoded:
        cache = self._cache(batch)
        clock = Clock()
        ids = self._generate(self._contexts[:batch], steps, past_key_values=cache, stopping_criteria=[clock])
        cache.crop(self._contexts.shape[1] - 1 - cache.get_seq_length())
        step_s = [after - before for before, after in zip(clock.times_s, clock.times_s[1:], strict=False)]
        return Decoded(step_s=step_s, token_ids=ids.tolist())

    def prefill(self, prompt: Sequence[int]) -> float:
        started_s = time.perf_counter()
        self._generate(torch.tensor([prompt]), 1)
        return time.perf_counter() - started_s

    def _cache(self, batch: int) -> Any:
        """Keys and values of the first `batch` contexts, less the last token: `generate` wants one to compute."""
        if batch not in self._caches:
            cache = DynamicCache(config=self._model.config)
            with torch.inference_mode():
                self._model(self._contexts[:batch, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._caches[batch] = cache
        return self._caches[batch]

    def _generate(self, ids: torch.Tensor, steps: int, **more: Any) -> torch.Tensor:
        with torch.inference_mode():
            output: torch.Tensor = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=steps,
                min_new_tokens=steps,
                do_sample=False,
                pad_token_id=0,
                **more,
            )
        return output[:, ids.shape[1] :]


if __name__ == "__main__":
    serve(lambda setup: Transformers(sys.argv[1], setup))
