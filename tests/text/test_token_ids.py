"""Which ids exist, asked for whole prompts at once."""

import pytest

from layered_llm.text import tokenizer as tokenizer_module
from layered_llm.text.tokenizer import TokenIds
from support.text_tokenizers import byte_level_pipeline, wrap


def with_gaps(monkeypatch: pytest.MonkeyPatch) -> TokenIds:
    whole = wrap(byte_level_pipeline())
    table = whole._tables[False].without({7})
    monkeypatch.setattr(whole, "_tables", {False: table, True: table})
    monkeypatch.setattr(whole, "gaps", ((7, 8),))
    return TokenIds.of(whole, model_size=whole.vocabulary_size)


def test_ids_of_a_tokenizer_with_gaps_are_not_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = with_gaps(monkeypatch)
    asked = list[int]()
    monkeypatch.setattr(tokenizer_module.Tokenizer, "has", lambda _, token: asked.append(token))

    assert ids.fault([1, 2, 3] * 10_000) is None
    assert asked == []


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        ([1, 7, 99_999], "7, which is no token of the tokenizer"),
        ([1, 99_999, 7], "99999, which is out of the vocabulary"),
        ([1, -1], "-1, which is out of the vocabulary"),
    ],
)
def test_the_first_id_that_does_not_exist_is_named(tokens: list[int], fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (with_gaps(monkeypatch).fault(tokens) or "").startswith(fault)
