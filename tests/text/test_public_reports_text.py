"""Faults of tokenizers and templates that other servers were reported for, each named after its kind."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import ChatMessage, Prompt
from layered_llm.domain.verdicts import RejectReason
from layered_llm.text.checkpoint_text import TextFiles, read_text_files
from layered_llm.text.preparation import Prepared
from support.chat_templates import LLAMA, STYLES
from support.text_core import CoreBench, files
from support.text_tokenizers import (
    BOS,
    byte_level,
    byte_level_pipeline,
    byte_level_with_bos,
    gemma_style,
    llama_style,
    metaspace_style,
)

LIMITS = EngineLimits(context_tokens=1000, vocabulary_size=1000)
HELLO = (ChatMessage(role="user", content="hello"),)


def prepare(text_files: TextFiles, prompt: Prompt, **params: Any) -> Prepared | Rejected:
    return CoreBench.of(text_files, LIMITS).begin(prompt, **params).run()


def prompt_ids(text_files: TextFiles, prompt: Prompt) -> list[int]:
    outcome = prepare(text_files, prompt)
    assert isinstance(outcome, Prepared)
    return list(unpack_i32(outcome.admit.prompt_ids))


def read(directory: Path, **contents: object) -> TextFiles:
    """A checkpoint of these files, `__` in a name standing for its dot."""
    (directory / "tokenizer.json").write_text(byte_level_pipeline().to_str())
    for name, content in contents.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)
    return read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1))


@pytest.mark.parametrize("make", [llama_style, gemma_style, metaspace_style], ids=lambda make: make.__name__)
def test_b17_no_space_is_lost_between_tokens_that_come_alone(make: Any) -> None:
    tokenizer = make()
    for text in ("a b  c", " a b", "a  END"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        state = tokenizer.start_detokenizer(skip_special_tokens=True)
        streamed = "".join(state.push(token) for token in ids) + state.finish()
        assert tokenizer.decode(ids, skip_special_tokens=True) == streamed
        assert text.lstrip() == streamed.lstrip()


@pytest.mark.parametrize("source", ["{{ 1 // 0 }}", "{{ messages[9].x.y }}", "{{ raise_exception('Alternate!') }}", "{% if %}"])
def test_c21_whatever_a_template_raises_is_the_callers_error(source: str) -> None:
    outcome = prepare(files(byte_level(), template=source), Prompt.of_chat(HELLO))
    assert isinstance(outcome, Rejected)
    assert (RejectReason.TEMPLATE_ERROR, "messages") == (outcome.reason, outcome.param)


def test_f1_a_template_that_has_bos_gets_no_second_one() -> None:
    tokenizer = byte_level_with_bos()
    text_files = files(tokenizer, template=f"{BOS}{{{{ messages[0].content }}}}")
    expected = [tokenizer.id_of(BOS), tokenizer.id_of("hello")]
    assert expected == prompt_ids(text_files, Prompt.of_chat(HELLO))
    assert expected == prompt_ids(text_files, Prompt.of_text("hello"))


def test_f3_ignoring_eos_ignores_each_of_them(tmp_path: Path) -> None:
    text_files = read(tmp_path, config__json={"eos_token_id": 7}, generation_config__json={"eos_token_id": [8, 9]})
    ending, ignoring = (prepare(text_files, Prompt.of_token_ids([1]), ignore_eos=ignore) for ignore in (False, True))
    assert isinstance(ending, Prepared)
    assert isinstance(ignoring, Prepared)
    assert ((7, 8, 9), ()) == (ending.admit.sampling.end_ids, ignoring.admit.sampling.end_ids)


def test_f4_what_a_request_overrides_leaves_the_other_defaults_and_every_eos(tmp_path: Path) -> None:
    text_files = read(tmp_path, generation_config__json={"eos_token_id": [8, 9], "temperature": 0.6, "top_p": 0.9})
    outcome = prepare(text_files, Prompt.of_token_ids([1]), temperature=0.2)
    assert isinstance(outcome, Prepared)
    sampling = outcome.admit.sampling
    assert (0.2, 0.9, (8, 9)) == (sampling.temperature, sampling.top_p, sampling.end_ids)


def test_f6_without_a_template_a_chat_is_refused_and_a_completion_is_not(tmp_path: Path) -> None:
    text_files = read(tmp_path)
    outcome = prepare(text_files, Prompt.of_chat(HELLO))
    assert isinstance(outcome, Rejected)
    assert (RejectReason.NO_CHAT_TEMPLATE, "messages") == (outcome.reason, outcome.param)
    assert "no chat template" in outcome.message
    assert 1 == len(prompt_ids(text_files, Prompt.of_text("hello")))


SOURCE = "{{ messages[0].content }}"
PLACES: dict[str, dict[str, object]] = {
    "jinja": {"chat_template__jinja": SOURCE},
    "json": {"chat_template__json": {"chat_template": SOURCE}},
    "config": {"tokenizer_config__json": {"chat_template": SOURCE}},
    "named": {"tokenizer_config__json": {"chat_template": [{"name": "default", "template": SOURCE}]}},
}


@pytest.mark.parametrize("place", PLACES)
def test_f6_a_template_may_stand_in_any_of_its_files(place: str, tmp_path: Path) -> None:
    text_files = read(tmp_path, **PLACES[place])
    assert prompt_ids(text_files, Prompt.of_text("hello")) == prompt_ids(text_files, Prompt.of_chat(HELLO))


@pytest.mark.parametrize("style", STYLES)
def test_f14_a_rendered_conversation_has_the_ids_of_the_same_text(style: str) -> None:
    tokenizer = byte_level()
    text_files = files(tokenizer, template=STYLES[style].template)
    assert text_files.template is not None
    text = text_files.template.render(HELLO)
    assert isinstance(text, str)
    assert prompt_ids(text_files, Prompt.of_chat(HELLO)) == prompt_ids(text_files, Prompt.of_text(text))
    assert "hello" in text
    assert style != "llama" or text.count(LLAMA.special[1]) == 3
