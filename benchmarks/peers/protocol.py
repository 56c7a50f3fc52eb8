"""How an engine in a process of its own is measured: one JSON object a line comes in, one goes out.

Runs in every peer's environment, so it needs nothing but the standard library.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TextIO

WEIGHT_SUFFIXES: Final = (".safetensors", ".gguf")


class Setup(NamedTuple):
    """What an engine is opened with."""

    contexts: Sequence[Sequence[int]]
    """Token ids of as many prompts as ever decode at a time, all of one length."""
    threads: int
    context_tokens: int
    """Most tokens of one sequence, of a long prompt too."""


class Size(NamedTuple):
    """In which format an engine holds what a step has to read."""

    weight_bytes: int
    kv_item_bytes: int
    """Of one number of a key or value."""


class Decoded(NamedTuple):
    """Greedy decoding of some sequences together."""

    step_s: Sequence[float]
    """Of each step; a step is a token of each sequence."""
    token_ids: Sequence[Sequence[int]]
    """Of each sequence."""


class Sized(Protocol):
    """What is measured."""

    def size(self) -> Size:
        """Of weights, keys and values."""


class Engine(Sized, Protocol):
    """It has computed the contexts when it is open."""

    def decode(self, batch: int, steps: int) -> Decoded:
        """The first `batch` contexts go on, each time from their ends."""

    def prefill(self, prompt: Sequence[int]) -> float:
        """Seconds from a prompt that nobody has asked yet to its first token."""


def weight_file_bytes(model: Path) -> int:
    """Of the weights as a directory or a file has them, for engines that rearrange them in memory."""
    files = model.iterdir() if model.is_dir() else [model]
    return sum(file.stat().st_size for file in files if file.suffix in WEIGHT_SUFFIXES)


def serve(open_engine: Callable[[Setup], Sized]) -> None:
    """Opens an engine and answers orders until standard input ends.

    Orders name a method and its arguments; an answer is what the method returns. Libraries that print do so on standard error.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine = open_engine(Setup(**json.loads(sys.stdin.readline())))
    _say(answers, engine.size()._asdict())
    for line in sys.stdin:
        order = json.loads(line)
        _say(answers, getattr(engine, order["method"])(**order["arguments"]))


def _say(answers: TextIO, answer: Any) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
