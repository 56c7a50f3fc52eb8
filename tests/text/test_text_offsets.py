"""Offsets agree with the text, whatever the tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.text.text_offsets import TextOffsets, offsets_of_text
from layered_llm.text.tokenizer import Tokenizer
from support.text_tokenizers import (
    byte_level,
    byte_level_with_bos,
    gemma_style,
    llama_style,
    metaspace_style,
    without_decoder,
)

KINDS = {
    "bytes": byte_level(),
    "bytes with bos": byte_level_with_bos(),
    "llama": llama_style(),
    "gemma": gemma_style(),
    "metaspace": metaspace_style(),
    "metaspace first": metaspace_style("first"),
    "no decoder": without_decoder(),
}


def plain(tokenizer: Tokenizer, token: int) -> str:
    """What a token spells by itself, "" where it is a part of a character or may be cut."""
    piece = tokenizer.token_bytes(token)
    return piece.decode() if piece.isascii() and not piece.startswith(b" ") and len(piece) < 12 else ""


@given(st.sampled_from(sorted(KINDS)), st.booleans(), st.data())
def test_each_plain_token_lies_where_its_offset_says(kind: str, skips: bool, data: st.DataObject) -> None:
    tokenizer = KINDS[kind]
    ids = [token for token in range(tokenizer.vocabulary_size) if tokenizer.has(token)]
    tokens = data.draw(st.lists(st.sampled_from(ids), max_size=12))
    text = tokenizer.decode(tokens, skip_special_tokens=skips)
    offsets = TextOffsets(tokenizer, skips)

    for token in tokens:
        place = offsets.push(token)
        is_shown = not (skips and token in tokenizer.special_ids)
        if is_shown and not isinstance(tokenizer.shown(token, skip_special_tokens=skips), int):
            spelled = plain(tokenizer, token)
            assert spelled == text[place : place + len(spelled)], (tokens, place, text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["stop a b", "a b", "éa", "a"])
def test_tokens_of_a_text_lie_where_they_are_in_it(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    tokens = tokenizer.encode(text, add_special_tokens=True)
    offsets = offsets_of_text(tokenizer, tokens, text)
    for token, place in zip(tokens, offsets, strict=True):
        spelled = "" if token in tokenizer.special_ids else plain(tokenizer, token)
        assert spelled == text[place : place + len(spelled)]
    assert sorted(offsets) == offsets


def test_the_space_that_a_text_does_not_show_does_not_count() -> None:
    tokenizer = llama_style()
    tokens = [tokenizer.id_of(token) or 0 for token in ("▁hello", "▁world", "a")]
    assert [0, 5, 11] == offsets_of_text(tokenizer, tokens, "hello worlda")


def test_a_special_token_counts_only_where_the_text_has_it() -> None:
    tokenizer = llama_style()
    bos, hello, a = (tokenizer.id_of(token) or 0 for token in ("<s>", "▁hello", "a"))
    assert [0, 0, 5] == offsets_of_text(tokenizer, [bos, hello, a], "helloa")
    assert [0, 3, 9] == offsets_of_text(tokenizer, [bos, hello, a], "<s> helloa")


def test_bytes_of_a_character_lie_where_it_begins() -> None:
    tokenizer = llama_style()
    tokens = [tokenizer.id_of(token) or 0 for token in ("a", "<0xC3>", "<0xA9>", "<0xC3>", "<0xA9>", "b")]
    offsets = TextOffsets(tokenizer, skips_special=True)
    assert [0, 1, 1, 2, 2, 3] == [offsets.push(token) for token in tokens]
