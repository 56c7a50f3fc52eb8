"""transformers as the measure of precision: logits of whole texts, in fp32 or fp64."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from layered_llm.runtime.models.gguf_model import GgufModel


def write_plain(checkpoint: Path, directory: Path) -> None:
    """A GGUF file's numbers in fp32, all exact, as a Hugging Face directory of a Llama without a tokenizer.

    Blocks are expanded by our reader, which is tested against the `gguf` library's; transformers' own needs more libraries.
    """
    model = GgufModel.open(checkpoint)
    tensors = {name: tensor.read().dequantized().reshape(tensor.shape) for name, tensor in model.tensors().items()}
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **model.config_json()}, indent=1))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


class Reference:
    """The weights of a Hugging Face directory, whatever their precision, computed in `dtype`."""

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
        self._best: dict[tuple[int, ...], tuple[list[int], list[float]]] = {}
        self._perplexities: dict[tuple[int, ...], float] = {}

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """[tokens, vocabulary]."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(torch.tensor([list(token_ids)])).logits[0]
        return logits

    def best(self, token_ids: Sequence[int]) -> tuple[list[int], list[float]]:
        """Behind each token: the likeliest one, and how far its logit lies above the second's. Kept, as variants agree."""
        if (key := tuple(token_ids)) not in self._best:
            best = self.logits(token_ids).topk(2)
            self._best[key] = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
        return self._best[key]

    def perplexity(self, token_ids: Sequence[int]) -> float:
        """Of all tokens but the first. Kept."""
        if (key := tuple(token_ids)) not in self._perplexities:
            self._perplexities[key] = self._perplexity(token_ids)
        return self._perplexities[key]

    def _perplexity(self, token_ids: Sequence[int]) -> float:
        logprobs = self.logits(token_ids)[:-1].double().log_softmax(dim=-1)
        told = logprobs.gather(1, torch.tensor(token_ids[1:])[:, None])
        return float(torch.exp(-told.mean()))

    def write(self, directory: Path, dtype: torch.dtype) -> None:
        """Its weights, rounded to `dtype`. The reference itself is rounded too."""
        self._model.to(dtype).save_pretrained(directory)
