"""What is asked: prompts from a file, or made of seeded words.

Must not know: how requests are sent, when.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs

_TEXT: Final = """
    time year people way day man thing woman life child world school state family student group country problem hand part
    place case week company system program question work government number night point home water room mother area money
    story fact month lot right study book eye job word business issue side kind head house service friend father power hour
    game line end member law car city community name president team minute idea body information back parent face level
"""
WORDS: Final = tuple(_TEXT.split())
"""Common English words, each one token with most vocabularies; a count of words is still only close to a count of tokens."""


@attrs.frozen
class TextPrompt:
    """Plain text: one user message, or the prompt of a text completion."""

    text: str


@attrs.frozen
class ChatPrompt:
    """A conversation, for the chat endpoint only."""

    messages: Sequence[Mapping[str, Any]]


Prompt = TextPrompt | ChatPrompt


@attrs.frozen(kw_only=True)
class WordRange:
    """Lengths of synthetic prompts, drawn uniformly between both ends."""

    low: int
    high: int


class PromptFileError(ValueError):
    """A prompt file that cannot be used; says where it is wrong."""


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts of a file, one per line that is not blank.

    A line of a `.jsonl` file is a string, `{"prompt": "…"}` or `{"messages": […]}`; other files hold plain text. Raises
    PromptFileError, and OSError when the file cannot be read.
    """
    if path.is_char_device():
        raise PromptFileError(f"{path}: it is a device, which may have no end")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines would cut at U+2028 too, which JSON strings may hold
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{path}: not UTF-8: invalid byte at offset {error.start}") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise PromptFileError(f"{path}: no prompts")
    if path.suffix != ".jsonl":
        return tuple(TextPrompt(line) for _number, line in numbered)
    return tuple(_read_json_line(line, f"{path}:{number}") for number, line in numbered)


def repeat(prompts: Sequence[Prompt]) -> Iterator[Prompt]:
    """The prompts in order, over and over."""
    return cycle(prompts)


def synthetic_prompts(random: Random, words: WordRange, *, shared_prefix_words: int = 0) -> Iterator[Prompt]:
    """Endless different prompts behind one common prefix of `shared_prefix_words` words, which a prefix cache can reuse."""
    prefix = random.choices(WORDS, k=shared_prefix_words)
    while True:
        own = random.choices(WORDS, k=random.randint(words.low, words.high))
        yield TextPrompt(" ".join([*prefix, *own]))


def _read_json_line(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptFileError(f"{where}: not JSON: {error}") from error
    match value:
        case str(text) | {"prompt": str(text)}:
            return TextPrompt(text)
        case {"messages": [{}, *_] as messages}:
            return ChatPrompt(messages)
        case _:
            raise PromptFileError(f'{where}: expected a string, {{"prompt": "…"}} or {{"messages": […]}}')
