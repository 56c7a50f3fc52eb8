from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from layered_llm.text.decode_tables import UnsupportedTokenizer
from layered_llm.text.tokenizer import Tokenizer
from support.text_tokenizers import (
    EOS,
    byte_level,
    gemma_style,
    llama_style,
    llama_style_pipeline,
    metaspace_style,
    without_decoder,
    wrap,
)


def strip_before_fuse() -> Tokenizer:
    stages = [decoders.Replace("▁", " "), decoders.Strip(" ", left=1, right=0), decoders.ByteFallback(), decoders.Fuse()]
    return wrap(llama_style_pipeline(decoders.Sequence(stages)))


def replace_behind_byte_fallback() -> Tokenizer:
    stages = [decoders.ByteFallback(), decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", left=3, right=0)]
    return wrap(llama_style_pipeline(decoders.Sequence(stages)))


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "llama": llama_style,
    "gemma": gemma_style,
    "metaspace": metaspace_style,
    "metaspace-never": lambda: metaspace_style("never"),
    "metaspace-first": lambda: metaspace_style("first"),
    "no-decoder": without_decoder,
    "strip-before-fuse": strip_before_fuse,
    "replace-behind-fallback": replace_behind_byte_fallback,
}
TOKENIZERS = {name: build() for name, build in FAMILIES.items()}

TEXTS = st.lists(
    st.sampled_from(
        [
            "hello world",
            " the end",
            "  ",
            "👨‍👩‍👧‍👦",
            "🏳️‍🌈",
            "🇩🇪🇫🇷",
            "한국어",
            "각",
            "हिन्दी",
            "क्षि",
            "日本",
            "é",
            "e\u0301",
            "\ufffd",
            "\u200d",
            "▁",
            "\n",
        ]
    )
    | st.text(max_size=4)
).map("".join)


def streamed(tokenizer: Tokenizer, ids: Sequence[int], *, skip: bool) -> list[str]:
    state = tokenizer.start_detokenizer(skip_special_tokens=skip)
    return [*map(state.push, ids), state.finish()]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=TEXTS, keep=st.integers(0, 60), skip=st.booleans())
def test_streamed_text_equals_the_decoding_of_the_whole(family: str, text: str, keep: int, skip: bool) -> None:
    tokenizer = TOKENIZERS[family]
    ids = tokenizer.encode(text, add_special_tokens=False)
    for sequence in (ids, ids[:keep]):
        expected = tokenizer.decode(sequence, skip_special_tokens=skip)
        assert expected == "".join(streamed(tokenizer, sequence, skip=skip))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(seeds=st.lists(st.integers(0, 10_000), max_size=24), skip=st.booleans())
def test_any_ids_stream_exactly(family: str, seeds: list[int], skip: bool) -> None:
    tokenizer = TOKENIZERS[family]
    ids = [seed % (tokenizer.vocabulary_size + 3) for seed in seeds]
    expected = tokenizer.decode(ids, skip_special_tokens=skip)
    assert expected == "".join(streamed(tokenizer, ids, skip=skip))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.lists(st.sampled_from([*"héक🙂\u200d".encode(), 0xF0, 0xE0, 0xED, 0x80, 0xC3]), max_size=16), skip=st.booleans())
def test_broken_utf8_gives_the_replacement_characters_of_the_whole(data: list[int], skip: bool) -> None:
    llama = TOKENIZERS["llama"]
    fallback = [llama.id_of(f"<0x{byte:02X}>") or 0 for byte in data]
    assert llama.decode(fallback, skip_special_tokens=skip) == "".join(streamed(llama, fallback, skip=skip))


@pytest.mark.parametrize("family", ["byte-level", "llama", "gemma"])
def test_no_push_shows_a_replacement_character_that_the_text_lacks(family: str) -> None:
    tokenizer = TOKENIZERS[family]
    text = "👨‍👩‍👧‍👦 हिन्दी 한국어"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > len(text)
    for length in range(len(ids) + 1):
        pushed = streamed(tokenizer, ids[:length], skip=True)[:-1]
        assert "\ufffd" not in "".join(pushed)
        assert text.startswith("".join(pushed).removeprefix(" "))


def test_an_incomplete_character_is_flushed_as_one_replacement_character() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a🙂", add_special_tokens=False)[:-1]
    assert ["a", *[""] * (len(ids) - 1), "\ufffd"] == streamed(tokenizer, ids, skip=True)


def test_a_byte_run_is_held_until_it_ends() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = [tokenizer.id_of(token) or 0 for token in ("<0xC3>", "<0xA4>", "a")]
    assert ["", "", "äa", ""] == streamed(tokenizer, ids, skip=True)


def test_special_tokens_stay_whole_when_they_are_kept() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode(f"hello{EOS}", add_special_tokens=False)
    assert ["hello", EOS, ""] == streamed(tokenizer, ids, skip=False)
    assert ["hello", "", ""] == streamed(tokenizer, ids, skip=True)


def test_an_added_token_with_a_space_is_shown_as_it_is_spelled() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("<tool call>", add_special_tokens=False)
    assert ["<tool call>", ""] == streamed(tokenizer, ids, skip=True)


def test_leading_space_is_cut_only_at_the_very_beginning() -> None:
    tokenizer = TOKENIZERS["llama"]
    ids = [tokenizer.id_of(token) or 0 for token in ("<s>", "▁", "▁hello", "▁world")]
    assert ["", "", " hello", " world", ""] == streamed(tokenizer, ids, skip=True)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
        decoders.Strip(" ", left=0, right=1),
    ],
)
def test_an_unknown_decoder_is_refused_by_name(decoder: decoders.Decoder) -> None:
    with pytest.raises(UnsupportedTokenizer, match="decoder stage"):
        wrap(llama_style_pipeline(decoder))
