"""The same greedy tokens by every door: transformers, the library, the server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from layered_llm import LLM, SamplingParams
from support.byte_checkpoint import VOCABULARY_SIZE, write_byte_checkpoint
from support.runtime_checkpoints import make_checkpoint, reference_greedy
from support.server import Server, python_server

OUTPUT_TOKENS = 24
PROMPTS = ([72, 101, 108, 108, 111], list(range(32, 126)), [200, 7, 7, 7, 7, 9, 11])
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral-bf16-shards": {"model_type": "mistral", "sliding_window": None, "dtype": torch.bfloat16, "shard_size": "60KB"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
}


@attrs.frozen(eq=False)
class Family:
    directory: Path
    expected: list[list[int]]
    server: Server


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    settings = FAMILIES[request.param]
    directory = write_byte_checkpoint(tmp_path_factory.mktemp(request.param) / "model")
    model = make_checkpoint(directory, vocab_size=VOCABULARY_SIZE, **settings)
    expected = [reference_greedy(model, prompt, OUTPUT_TOKENS) for prompt in PROMPTS]
    with python_server({"model": directory}) as server:
        yield Family(directory, expected, server)


def test_the_library_says_what_transformers_says(family: Family) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    with LLM(str(family.directory)) as llm:
        completions = llm.generate(list(PROMPTS), params, progress=False)

    assert family.expected == [list(completion.token_ids) for completion in completions]


def test_the_server_says_what_transformers_says(family: Family) -> None:
    body = {"prompt": list(PROMPTS), "temperature": 0, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}

    answer = family.server.post("/v1/completions", {**body, "return_token_ids": True}).json()

    assert family.expected == [choice["token_ids"] for choice in answer["choices"]]
    assert len(PROMPTS) * OUTPUT_TOKENS == answer["usage"]["completion_tokens"]
