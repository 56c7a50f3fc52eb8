"""Faults of models that other servers were reported for, each named after its kind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from support.runtime_checkpoints import LLAMA3_ROPE, make_checkpoint, reference_greedy
from support.runtime_driver import generate
from support.runtime_options import make_options

PROMPT = list(range(3, 60))
"""Longer than the context that the scaled rope was made for."""


def served(directory: Path) -> list[int]:
    (output,) = generate(open_cpu_device(make_options(directory), now_us=lambda: 0), [PROMPT], output_tokens=8)
    return output


@pytest.mark.parametrize(("is_tied", "has_head"), [(True, False), (True, True), (False, True)])
def test_f7_the_head_is_the_embedding_where_the_config_ties_them_and_the_file_has_no_other(
    is_tied: bool, has_head: bool, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, tie_word_embeddings=is_tied)
    weights = load_file(tmp_path / "model.safetensors")
    assert ("lm_head.weight" in weights) is not is_tied
    if is_tied and has_head:
        weights["lm_head.weight"] = torch.flip(weights["model.embed_tokens.weight"], dims=(0,))
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert reference_greedy(model, PROMPT, 8) == served(tmp_path)


VARIANTS: dict[str, dict[str, Any]] = {
    "f10_llama3_rope_is_not_linear": {"rope_parameters": LLAMA3_ROPE},
    "f13_a_head_of_80": {"head_dim": 80},
    "f13_a_head_of_16": {"head_dim": 16},
    "f15_float16_on_a_cpu": {"dtype": torch.float16},
    "f15_bfloat16_on_a_cpu": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_other_servers_got_wrong_is_as_in_transformers(variant: str, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, **VARIANTS[variant])

    assert reference_greedy(model, PROMPT, 8) == served(tmp_path)
