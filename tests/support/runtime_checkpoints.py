"""Tiny random checkpoints, made by transformers: import this module only where a test needs one, it takes seconds."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def make_checkpoint(
    directory: Path,
    *,
    model_type: str = "llama",
    dtype: torch.dtype = torch.float32,
    shard_size: str = "1GB",
    seed: int = 0,
    **settings: Any,
) -> Any:
    """Writes a random model to `directory`; the transformers model in fp32, with the very weights of the file."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **(SIZES | settings))
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.to(dtype).save_pretrained(directory, max_shard_size=shard_size)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def reference_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] of one whole forward pass."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def reference_greedy(model: Any, prompt: list[int], output_tokens: int) -> list[int]:
    token_ids = list(prompt)
    for _ in range(output_tokens):
        token_ids.append(int(reference_logits(model, token_ids)[-1].argmax()))
    return token_ids[len(prompt) :]
