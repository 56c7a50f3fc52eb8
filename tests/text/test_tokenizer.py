import json
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from layered_llm.text.decode_tables import UnsupportedTokenizer
from layered_llm.text.prompt_bound import PromptBound, prompt_bound
from layered_llm.text.tokenizer import CannotEncode, Tokenizer
from support.text_tokenizers import (
    BOS,
    EOS,
    byte_level,
    byte_level_pipeline,
    byte_level_with_bos,
    gemma_style,
    llama_style,
    llama_style_pipeline,
    wrap,
)

MEMORY_OF_DISTINCT_TEXTS = """
from layered_llm.testing.byte_text import byte_text_files
tokenizer = byte_text_files().tokenizer
def resident_kb():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
def encode(numbers):
    for number in numbers:
        tokenizer.encode(f"{number:0250}", add_special_tokens=True)
encode(range(2000))
before = resident_kb()
encode(range(2000, 12000))
print(resident_kb() - before)
"""


def test_distinct_texts_for_ever_take_no_more_memory() -> None:
    command = [sys.executable, "-c", MEMORY_OF_DISTINCT_TEXTS]
    grown_kb = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown_kb < 4_000


def test_special_tokens_spelled_in_the_text_are_parsed() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(f"hello{EOS}", add_special_tokens=False)
    assert [tokenizer.id_of("hello"), tokenizer.id_of(EOS)] == ids


def test_bos_is_added_only_on_demand() -> None:
    tokenizer = byte_level_with_bos()
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert [tokenizer.id_of(BOS), *plain] == tokenizer.encode("hello", add_special_tokens=True)


def test_special_ids_and_vocabulary_size() -> None:
    tokenizer = byte_level()
    assert {tokenizer.id_of(BOS), tokenizer.id_of(EOS)} == tokenizer.special_ids
    assert tokenizer.vocabulary_size == (tokenizer.id_of("<tool call>") or 0) + 1


def test_a_lone_surrogate_cannot_be_encoded() -> None:
    with pytest.raises(CannotEncode, match=r"U\+D800, half of a surrogate pair, at character 2"):
        byte_level().encode("ab\ud800", add_special_tokens=False)


def test_what_the_library_refuses_cannot_be_encoded() -> None:
    words = tokenizers.Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="<unk>"))
    with pytest.raises(CannotEncode, match="the tokenizer refuses it"):
        wrap(words).encode("b", add_special_tokens=False)


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    pipeline = byte_level_pipeline()
    pipeline.enable_truncation(2)
    pipeline.enable_padding(length=50)
    assert 7 == len(wrap(pipeline).encode("abcdefg", add_special_tokens=False))


def test_tokens_that_only_the_config_declares_are_known_and_special() -> None:
    config = {
        "added_tokens_decoder": {"900": {"content": "<think>", "special": False}, "901": {"content": "<pad>", "special": True}},
        "eos_token": {"content": "hello"},
        "bos_token": None,
        "additional_special_tokens": ["world"],
    }
    tokenizer = wrap(byte_level_pipeline(), config)
    ids = tokenizer.encode("hello<think>x<pad>world", add_special_tokens=False)
    assert [tokenizer.id_of(token) for token in ("hello", "<think>", "x", "<pad>", "world")] == ids
    assert "<think>x" == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["", "{}", '{"model": {"type": "Telepathy"}}'])
def test_an_unreadable_file_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_json(text)


def nested(levels: int) -> str:
    return '{"version": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize("text", [nested(100), nested(100_000), "\ud800", '{"version": "\\ud800"}', "[" * 100_000])
def test_a_file_that_is_nested_too_deeply_or_spells_half_a_character_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_json(text)


def test_what_the_library_quotes_of_a_file_is_cut_to_a_line() -> None:
    spec = json.loads(byte_level_pipeline().to_str()) | {"added_tokens": "x\n" * 10_000}
    with pytest.raises(UnsupportedTokenizer) as caught:
        Tokenizer.from_json(json.dumps(spec))
    assert (True, 1) == (len(str(caught.value)) < 400, len(str(caught.value).splitlines()))


def test_a_file_at_which_the_library_panics_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    spec = json.loads(byte_level_pipeline().to_str())
    spec["model"]["continuing_subword_prefix"] = "prefix"
    with pytest.raises(UnsupportedTokenizer, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_json(json.dumps(spec))
    assert "panicked" in capfd.readouterr().err


def test_a_text_at_which_the_library_panics_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    spec = json.loads(byte_level_pipeline().to_str())
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "nobody", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    with pytest.raises(CannotEncode, match="the tokenizer"):
        Tokenizer.from_json(json.dumps(spec)).encode("a", add_special_tokens=True)
    capfd.readouterr()


def test_an_id_that_no_message_can_carry_is_refused() -> None:
    spec = json.loads(byte_level_pipeline().to_str())
    spec["model"]["vocab"]["far"] = 2**32 - 1
    with pytest.raises(UnsupportedTokenizer, match="has the id 4294967295"):
        Tokenizer.from_json(json.dumps(spec))


def test_a_decoder_without_type_is_refused() -> None:
    spec = json.loads(byte_level_pipeline().to_str()) | {"decoder": {"pattern": {"String": "a"}, "content": "b"}}
    with pytest.raises(UnsupportedTokenizer):
        Tokenizer.from_json(json.dumps(spec))


def test_both_ids_of_a_spelling_that_a_list_has_twice_are_tokens() -> None:
    pipeline = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("<unk>", -3.0)], unk_id=0))
    tokenizer = wrap(pipeline)
    assert (True, ()) == (tokenizer.has(0) and tokenizer.has(2), tokenizer.gaps)


def test_threads_may_encode_at_the_same_time() -> None:
    tokenizer = byte_level()
    texts = [f"hello world {number} the end" for number in range(200)]
    expected = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert expected == list(pool.map(lambda text: tokenizer.encode(text, add_special_tokens=True), texts))


def with_nfc() -> Tokenizer:
    pipeline = byte_level_pipeline(missing=bytes([0x04, 0x06, 0xF1]))
    pipeline.normalizer = normalizers.NFC()
    return wrap(pipeline)


BOUNDED = {"byte-level": byte_level(), "nfc": with_nfc(), "llama": llama_style(), "gemma": gemma_style()}


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    parts=st.lists(
        st.sampled_from(["hello", " ", "\x04\x04\x06", "e\u0301", "ᾂ", "가", "\U000f0000", "▁▁"]) | st.text(), max_size=8
    )
)
def test_the_bound_never_exceeds_the_number_of_tokens(name: str, parts: list[str]) -> None:
    tokenizer = BOUNDED[name]
    bound = tokenizer.bound
    assert bound is not None
    for text in ("".join(parts), unicodedata.normalize("NFD", "".join(parts))):
        assert bound.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


def test_no_character_decomposes_into_more_than_the_bound_of_nfc_assumes() -> None:
    assert 4 == max(len(unicodedata.normalize("NFD", chr(code))) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def test_characters_without_a_token_do_not_count() -> None:
    assert PromptBound(token_chars=4 * len("<tool call>"), vanishing="\x04\x06") == with_nfc().bound
    bound = PromptBound(token_chars=3, vanishing="\x04")
    assert 2 == bound.least_tokens("\x04" * 1000 + "abcd")


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}},
        {"model": {"type": "WordLevel"}},
    ],
)
def test_there_is_no_bound_where_text_may_vanish(change: dict[str, object]) -> None:
    pipeline = byte_level_pipeline()
    spec = json.loads(pipeline.to_str())
    assert prompt_bound(spec, pipeline.get_vocab()) is not None
    assert prompt_bound(spec | change, pipeline.get_vocab()) is None


def test_there_is_no_bound_without_tokens_for_continuation_bytes() -> None:
    assert wrap(byte_level_pipeline(words=["hello"], missing=b"\x80")).bound is None


def test_there_is_no_bound_when_added_tokens_swallow_spaces() -> None:
    pipeline = byte_level_pipeline()
    pipeline.add_tokens([AddedToken("<mask>", rstrip=True)])
    assert wrap(pipeline).bound is None


def test_there_is_no_bound_when_unknown_characters_fuse() -> None:
    spec = json.loads(llama_style_pipeline(decoders.Fuse()).to_str())
    spec["model"]["byte_fallback"] = False
    assert prompt_bound(spec, spec["model"]["vocab"]) is None


def test_a_split_that_keeps_its_pieces_has_a_bound() -> None:
    pipeline = byte_level_pipeline()
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    assert wrap(pipeline).bound is not None
