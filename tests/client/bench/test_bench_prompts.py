from itertools import islice
from pathlib import Path
from random import Random

import pytest

from layered_llm.client.bench.prompts import (
    WORDS,
    ChatPrompt,
    PromptFileError,
    TextPrompt,
    WordRange,
    read_prompts,
    repeat,
    synthetic_prompts,
)


def synthetic(seed: int, low: int, high: int, *, prefix: int = 0, count: int = 20) -> list[list[str]]:
    prompts = synthetic_prompts(Random(seed), WordRange(low=low, high=high), shared_prefix_words=prefix)
    return [prompt.text.split() for prompt in islice(prompts, count) if isinstance(prompt, TextPrompt)]


def test_text_file_has_a_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('Who?\n\n   \n"Wo" ist ö?\r\n', encoding="utf-8")

    assert (TextPrompt("Who?"), TextPrompt('"Wo" ist ö?')) == read_prompts(path)


def test_jsonl_file_has_three_kinds_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\\nb"\n{"prompt": "c", "id": 3}\n\n{"messages": [{"role": "user", "content": "d"}]}\n')

    expected = (TextPrompt("a\nb"), TextPrompt("c"), ChatPrompt([{"role": "user", "content": "d"}]))
    assert expected == read_prompts(path)


@pytest.mark.parametrize("line", ["{", "3", '{"messages": []}', '{"messages": "x"}', '{"prompt": 3}', "[" * 100_000])
def test_jsonl_mistakes_name_their_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n\n{line}\n')

    with pytest.raises(PromptFileError, match=r"prompts\.jsonl:3"):
        read_prompts(path)


def test_file_without_prompts(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n\n")

    with pytest.raises(PromptFileError, match="no prompts"):
        read_prompts(path)


def test_line_ends_of_unicode_are_no_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one\u2028prompt\x85"\r\n"another"\n', encoding="utf-8", newline="")

    assert (TextPrompt("one\u2028prompt\x85"), TextPrompt("another")) == read_prompts(path)


def test_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"ok\n\xff")

    with pytest.raises(PromptFileError, match="not UTF-8: invalid byte at offset 3"):
        read_prompts(path)


def test_a_device_is_no_file_of_prompts() -> None:
    with pytest.raises(PromptFileError, match="/dev/zero: it is a device"):
        read_prompts(Path("/dev/zero"))


def test_a_line_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("[" * 20_000)
    with pytest.raises(PromptFileError, match=r"p\.jsonl:1: .*recursion"):
        read_prompts(path)


def test_prompts_of_a_file_come_round() -> None:
    a, b = TextPrompt("a"), TextPrompt("b")

    assert [a, b, a] == list(islice(repeat([a, b]), 3))


def test_synthetic_prompts_are_those_of_the_seed() -> None:
    assert synthetic(1, 5, 9) == synthetic(1, 5, 9)
    assert synthetic(1, 5, 9) != synthetic(2, 5, 9)


def test_synthetic_lengths_cover_their_range() -> None:
    assert {5, 6, 7} == {len(words) for words in synthetic(0, 5, 7, count=50)}


def test_synthetic_prompts_share_their_prefix_and_nothing_more() -> None:
    prompts = synthetic(0, 10, 10, prefix=30)

    assert 1 == len({tuple(words[:30]) for words in prompts})
    assert len(prompts) == len({tuple(words[30:]) for words in prompts})
    assert {40} == {len(words) for words in prompts}


def test_words_are_all_different() -> None:
    assert len(WORDS) == len(set(WORDS))
