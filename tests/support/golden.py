"""The reference answers of the default model, as golden/make_reference.py wrote them."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import tokenizers

from layered_llm.service.model.checkpoint import default_gguf
from layered_llm.text.checkpoint_text import CheckpointFiles

_REFERENCE: Final = Path(__file__).parents[1] / "golden" / "smollm2_greedy.json"

LOGPROBS: Final = _REFERENCE.with_name("smollm2_logprobs.json")
LOGPROB_PROMPTS: Final = ("english", "chat-code", "chinese")
LOGPROB_TOKENS: Final = 16


@attrs.frozen(kw_only=True)
class Golden:
    """One prompt with its answer."""

    name: str
    prompt: Mapping[str, Any]
    """The fields `prompt` or `messages` of a request."""
    ignore_eos: bool
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    """With the end token where the answer ends with one."""

    @property
    def is_chat(self) -> bool:
        return "messages" in self.prompt


@functools.cache
def goldens() -> tuple[Golden, ...]:
    prompts = json.loads(_REFERENCE.read_text(encoding="utf-8"))["prompts"]
    return tuple(_read(prompt) for prompt in prompts)


def golden(name: str) -> Golden:
    return next(each for each in goldens() if each.name == name)


@functools.cache
def golden_logprobs() -> Mapping[str, Sequence[Sequence[tuple[int, float]]]]:
    """(token id, log probability) of the likeliest tokens in place of each of an answer's first tokens, by prompt."""
    told = json.loads(LOGPROBS.read_text(encoding="utf-8"))
    return {name: [[(token, value) for token, value in row] for row in rows] for name, rows in told.items()}


def default_checkpoint() -> Path:
    """The default model's GGUF file."""
    return default_gguf()


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(CheckpointFiles.of(default_checkpoint()).read("tokenizer.json") or "")


def _read(prompt: Mapping[str, Any]) -> Golden:
    return Golden(
        name=prompt["name"],
        prompt={"messages": prompt["messages"]} if "messages" in prompt else {"prompt": prompt["text"]},
        ignore_eos=prompt["ignore_eos"],
        prompt_ids=prompt["prompt_ids"],
        output_ids=prompt["output_ids"],
    )
