import random
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch

from support.byte_checkpoint import VOCABULARY_SIZE, write_byte_checkpoint
from support.runtime_checkpoints import make_checkpoint, reference_logits
from support.server import SERVED_NAME, Server, python_server

EXACT = 1e-4
TOP = 5


@attrs.frozen
class Served:
    """A server, and the model that it serves as transformers has it."""

    server: Server
    model: Any

    def expected(self, token_ids: list[int]) -> list[list[float]]:
        """[token][vocabulary]: the log probabilities of what stands in each place but the first."""
        logprobs: list[list[float]] = torch.log_softmax(reference_logits(self.model, token_ids).double(), dim=-1).tolist()
        return logprobs[:-1]

    def completion(self, prompt: list[int], **fields: object) -> Any:
        asked = {"prompt": prompt, "logprobs": TOP, "return_tokens_as_token_ids": True, "return_token_ids": True}
        response = self.server.post("/v1/completions", {**asked, "ignore_eos": True, **fields})
        assert 200 == response.status_code, response.text
        return response.json()["choices"][0]

    def cached_tokens(self, prompt: list[int]) -> int:
        usage = self.server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("model")
    model = make_checkpoint(directory, vocab_size=VOCABULARY_SIZE, initializer_range=0.15)
    config = (directory / "config.json").read_text()
    write_byte_checkpoint(directory)
    (directory / "config.json").write_text(config)
    settings = {
        "model": directory,
        "served_model_name": SERVED_NAME,
        "num_pages": 128,
        "threads": 1,
        "chunked_prefill_size": 24,
    }
    with python_server(settings) as server:
        yield Served(server, model)


def prompt_of(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(3, 256) for _ in range(length)]


def check_scores(told: Any, ids: list[int], expected: list[list[float]]) -> None:
    """Each token's own score, and those of the likeliest beside it."""
    assert [f"token_id:{token}" for token in ids] == told["tokens"]
    for token, own, top, row in zip(ids, told["token_logprobs"], told["top_logprobs"], expected, strict=True):
        assert EXACT > abs(own - row[token])
        scores = {int(name.removeprefix("token_id:")): score for name, score in top.items()}
        assert all(EXACT > abs(score - row[other]) for other, score in scores.items())
        assert EXACT > abs(max(scores.values()) - max(row))
        assert TOP <= len(scores) <= TOP + 1


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_prompt_and_output_are_scored_as_by_transformers_cold_and_warm(temperature: float, served: Served) -> None:
    prompt = prompt_of(int(10 * temperature), 70)
    for state in ("cold", "warm"):
        choice = served.completion(prompt, echo=True, max_tokens=12, temperature=temperature, seed=3)
        assert prompt == choice["prompt_token_ids"], state
        ids = prompt + choice["token_ids"]
        told = {name: values[1:] for name, values in choice["logprobs"].items()}
        check_scores(told, ids[1:], served.expected(ids))
    assert 64 == served.cached_tokens(prompt)


def test_an_output_behind_a_cached_prompt_is_scored_as_by_transformers(served: Served) -> None:
    prompt = prompt_of(5, 80)
    served.completion(prompt, max_tokens=1)
    longer = prompt + prompt_of(6, 9)

    choice = served.completion(longer, max_tokens=12, temperature=0)

    assert served.cached_tokens(longer) >= 80
    check_scores(choice["logprobs"], choice["token_ids"], served.expected(longer + choice["token_ids"])[len(longer) - 1 :])


def test_a_prompt_alone_is_scored_as_by_transformers(served: Served) -> None:
    prompt = prompt_of(8, 50)
    for _cold_then_warm in range(2):
        choice = served.completion(prompt, echo=True, max_tokens=0)
        told = {name: values[1:] for name, values in choice["logprobs"].items()}
        check_scores(told, prompt[1:], served.expected(prompt))
