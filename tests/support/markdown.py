"""The code blocks of a document, and whether what a block printed is what the document shows."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

REPOSITORY: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Block:
    language: str
    """Empty, or json, for what a block before it prints."""
    text: str
    line: int


@attrs.frozen
class Example:
    """A block to run."""

    block: Block
    shown: str | None
    """What the document shows right after it; None where that is no output."""

    @property
    def name(self) -> str:
        """For the name of a test."""
        return f"line-{self.block.line}"


def examples(path: Path) -> Sequence[Example]:
    """The blocks of sh and python, in order."""
    text = path.read_text(encoding="utf-8")
    found = [(match, Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)) for match in _BLOCK.finditer(text)]
    return [Example(block, _output(text[match.end() :])) for match, block in found if block.language in ("sh", "python")]


def _output(rest: str) -> str | None:
    match = _BLOCK.match(rest.lstrip("\n"))
    return match[2] if match is not None and match[1] in ("", "json") else None


def is_shown(printed: str, shown: str) -> bool:
    """Whether they are equal, where `…` stands for anything, and blanks at the end of a line for nothing."""
    pattern = ".*".join(map(re.escape, _trimmed(shown).split("…")))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
