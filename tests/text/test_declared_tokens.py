"""Tokens that files beside a tokenizer.json declare mean what they mean to transformers."""

import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from layered_llm.text.checkpoint_text import TextFiles, UnreadableCheckpoint, read_text_files
from support.byte_checkpoint import write_byte_checkpoint
from support.text_tokenizers import byte_level_pipeline, llama_decoder, llama_style_pipeline

SPELLINGS = ("<a>", "<b>", "<c>", "hello", "<|end|>", "<|begin|>", "<tool call>", "he", "Ġworld", "<A>", "world")
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "image_token", "audio_token", "cls_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SWITCHES = (
    "split_special_tokens",
    "add_bos_token",
    "add_eos_token",
    "add_prefix_space",
    "legacy",
    "clean_up_tokenization_spaces",
)


def read(directory: Path) -> TextFiles:
    return read_text_files(directory, clock=lambda: dt.datetime(2025, 1, 1))


def write(directory: Path, **files: object) -> Path:
    """The byte-level checkpoint, whose tokens end at 258, with other files beside its tokenizer.json."""
    write_byte_checkpoint(directory)
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


class Chance:
    """Draws files: what they declare overlaps, contradicts and repeats."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def files(self) -> dict[str, Any]:
        makers: dict[str, tuple[float, Callable[[], dict[str, Any]]]] = {
            "tokenizer_config.json": (0.9, self._config),
            "special_tokens_map.json": (0.5, self._special_tokens_map),
            "added_tokens.json": (0.5, self._added_tokens),
        }
        return {name: make() for name, (share, make) in makers.items() if self._happens(share)}

    def pipeline(self) -> tokenizers.Tokenizer:
        pipeline = byte_level_pipeline() if self._happens(0.6) else llama_style_pipeline(llama_decoder())
        pipeline.add_tokens([tokenizers.AddedToken(**self._token()) for _ in range(self._random.randrange(3))])
        return pipeline

    def text(self) -> str:
        pieces = (*SPELLINGS, "  ", " ", "x", "é", "<a", "A")
        return "".join(self._random.choice(pieces) for _ in range(self._random.randrange(1, 9)))

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if self._happens(0.4):
            config["added_tokens_decoder"] = {str(self._random.randrange(280, 300)): self._token() for _ in range(3)}
        config |= {name: self._declared() for name in NAMES if self._happens(0.3)}
        if self._happens(0.3):
            config["additional_special_tokens"] = self._several(self._declared)
        if self._happens(0.3):
            config["extra_special_tokens"] = self._several(self._declared)
        elif self._happens(0.2):
            config["extra_special_tokens"] = {self._random.choice((*NAMES, "x_token")): self._declared() for _ in range(2)}
        return config | {name: self._happens(0.5) for name in SWITCHES if self._happens(0.2)}

    def _special_tokens_map(self) -> dict[str, Any]:
        tokens: dict[str, Any] = {}
        for name in NAMES:
            if self._happens(0.3):
                token = {key: value for key, value in self._token().items() if key != "special"}
                tokens[name] = self._spelling() if self._happens(0.5) else token
        for name in ("additional_special_tokens", "extra_special_tokens"):
            if self._happens(0.3):
                tokens[name] = self._several(self._spelling)
        return tokens

    def _added_tokens(self) -> dict[str, Any]:
        return {spelling: 300 + place for place, spelling in enumerate(self._random.sample(SPELLINGS, 2))}

    def _happens(self, share: float) -> bool:
        return self._random.random() < share

    def _several(self, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self._random.randrange(3))]

    def _spelling(self) -> str:
        return self._random.choice(SPELLINGS)

    def _token(self) -> dict[str, Any]:
        return {"content": self._spelling()} | {flag: self._happens(0.5) for flag in FLAGS if self._happens(0.4)}

    def _declared(self) -> Any:
        return self._spelling() if self._happens(0.6) else self._token() | {"__type": "AddedToken"}


def to_transformers(directory: Path, texts: list[str]) -> list[Any]:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    ids = [tokenizer(text)["input_ids"] for text in texts]
    decoded = [[tokenizer.decode(each, skip_special_tokens=skips) for each in ids] for skips in (False, True)]
    return [{name: str(token) for name, token in tokenizer.special_tokens_map.items()}, ids, decoded]


def here(directory: Path, texts: list[str]) -> list[Any]:
    tokenizer = read(directory).tokenizer
    ids = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    decoded = [[tokenizer.decode(each, skip_special_tokens=skips) for each in ids] for skips in (False, True)]
    return [tokenizer.named_tokens, ids, decoded]


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_files_that_contradict_each_other_mean_what_they_mean_to_transformers(seed: int, tmp_path: Path) -> None:
    for case in range(seed, seed + 10):
        chance, directory = Chance(case), tmp_path / str(case)
        directory.mkdir()
        chance.pipeline().save(str(directory / "tokenizer.json"))
        for name, content in chance.files().items():
            (directory / name).write_text(json.dumps(content))
        texts = [chance.text() for _ in range(6)]
        assert to_transformers(directory, texts) == here(directory, texts), f"case {case}"


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": {"<new token>": 259}},
        {"tokenizer_config": {"extra_special_tokens": ["<new token>"]}},
        {"tokenizer_config": {"extra_special_tokens": {"tool_token": "<new token>"}}},
        {"tokenizer_config": {"additional_special_tokens": ["<new token>"]}},
        {"special_tokens_map": {"additional_special_tokens": ["<new token>"]}},
        {"special_tokens_map": {"pad_token": {"content": "<new token>", "lstrip": False}}},
        {"tokenizer_config": {"added_tokens_decoder": {"259": {"content": "<new token>"}}}},
    ],
)
def test_a_token_that_only_a_file_beside_declares_is_one_id(files: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = read(write(tmp_path, **files)).tokenizer
    assert [97, 259, 98] == tokenizer.encode("a<new token>b", add_special_tokens=False)


def test_flags_of_tokenizer_config_replace_those_of_tokenizer_json(tmp_path: Path) -> None:
    decoder = {"256": {"content": "<|bos|>", "rstrip": True, "special": True, "normalized": False}}
    tokenizer = read(write(tmp_path, tokenizer_config={"added_tokens_decoder": decoder})).tokenizer
    assert [97, 256, 98] == tokenizer.encode("a<|bos|>  b", add_special_tokens=False)


def test_the_name_of_the_end_may_be_in_special_tokens_map_alone(tmp_path: Path) -> None:
    files = read(write(tmp_path, tokenizer_config={}, special_tokens_map={"eos_token": "<|turn|>"}, config={}))
    assert ({258}, "<|turn|>") == (set(files.eos_ids), json.loads(files.config)["eos_token"])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "added_tokens_decoder must be an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"5": 7}}}, "added_tokens_decoder must be an object, got 7"),
        ({"tokenizer_config": {"added_tokens_decoder": {"five": {"content": "a"}}}}, "'five' is no token id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}}, "is no token id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"5": {}}}}, "content must be a string, got None"),
        ({"tokenizer_config": {"added_tokens_decoder": {"5": {"content": 5}}}}, "content must be a string, got 5"),
        ({"tokenizer_config": {"added_tokens_decoder": {"5": {"content": "a", "rstrip": 1}}}}, "rstrip of 'a' must be true or"),
        ({"tokenizer_config": {"eos_token": 5}}, "eos_token must be a token"),
        ({"tokenizer_config": {"eos_token": ["a"]}}, "eos_token must be a token"),
        ({"tokenizer_config": {"eos_token": {"id": 5}}}, "eos_token: a token's content must be a string"),
        ({"tokenizer_config": {"extra_special_tokens": "a"}}, "extra_special_tokens must be a list of tokens"),
        ({"tokenizer_config": {"additional_special_tokens": [5]}}, "must be a token, as a string"),
        ({"tokenizer_config": {"split_special_tokens": "no"}}, "split_special_tokens must be true or false"),
        ({"tokenizer_config": {"eos_token": "\ud800"}}, "half of a surrogate pair"),
        ({"special_tokens_map": {"eos_token": {"content": 5}}}, "eos_token: a token's content must be a string"),
        ({"special_tokens_map": {"extra_special_tokens": 5}}, "extra_special_tokens must be a list of tokens"),
        ({"special_tokens_map": []}, "special_tokens_map.json holds no JSON object"),
        ({"added_tokens": {"a": "x"}}, r"added_tokens.json: 'a': 'x' is no token id"),
        ({"added_tokens": {"a": -1}}, r"added_tokens.json: 'a': -1 is no token id"),
    ],
)
def test_an_entry_of_another_kind_is_named_in_one_line(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableCheckpoint) as caught:
        read(write(tmp_path, **({"tokenizer_config": {}} | files)))
    assert words in str(caught.value)
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize("forced", [False, True])
def test_spaces_are_taken_out_of_texts_by_neither_of_us_where_the_model_is_bpe(forced: bool, tmp_path: Path) -> None:
    switch = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    directory = write(tmp_path, tokenizer_config={"clean_up_tokenization_spaces": True, switch: forced})
    if forced:
        with pytest.raises(UnreadableCheckpoint, match="takes spaces out of the texts of this BPE model"):
            read(directory)
    else:
        assert "a ." == read(directory).tokenizer.decode([97, 32, 46], skip_special_tokens=True)
