"""A model whose numbers are not finite for some prompts, from a checkpoint to the program that asks."""

from collections.abc import Iterator

import pytest
import torch

from layered_llm import LLM, RequestFailed, SamplingParams
from support.byte_checkpoint import VOCABULARY_SIZE, write_byte_checkpoint
from support.runtime_checkpoints import make_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The embedding of ~ is NaN."""
    directory = write_byte_checkpoint(tmp_path_factory.mktemp("poisoned"))
    model = make_checkpoint(directory, vocab_size=VOCABULARY_SIZE)
    model.model.embed_tokens.weight.data[ord("~")] = torch.nan
    model.save_pretrained(directory)
    with LLM(directory, kernels="torch", num_pages=64) as llm:
        yield llm


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_prompt_that_the_model_cannot_compute_says_so(llm: LLM, logprobs: int | None) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=logprobs, prompt_logprobs=logprobs)
    with pytest.raises(RequestFailed, match="not finite"):
        llm.generate(["one ~ two"], params)


def test_the_engine_goes_on_behind_it_with_the_same_answers(llm: LLM) -> None:
    (before,) = llm.generate(["one two three"], GREEDY)
    with pytest.raises(RequestFailed):
        llm.generate(["one two ~ three", "one two"], GREEDY)
    (after,) = llm.generate(["one two three"], GREEDY)
    assert before.token_ids == after.token_ids
