"""The text files of a model, under the names that they have in a Hugging Face directory, whatever the model's format is.

Must not know: what is in a file.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import attrs

from layered_llm.formats.gguf import GgufError, GgufFile
from layered_llm.formats.untrusted_files import MOST_JSON_BYTES, UnreadableFile, read_text
from layered_llm.text.gguf_pretokenizers import UnsupportedGguf
from layered_llm.text.gguf_tokenizer import tokenizer_files

_TEXT_KEYS: Final = ("tokenizer.", "general.sampling.")
_MOST_BYTES: Final = MappingProxyType({"tokenizer.json": 100 << 20})
"""Of files that may be larger than others: the largest vocabularies need 40 MB."""


class UnreadableCheckpoint(Exception):  # noqa: N818 - states what was found
    """A text file of the checkpoint is missing or broken; the message names the file and how to mend it."""


@attrs.frozen
class CheckpointFiles:
    """Where the files are read from."""

    _model: Path
    _made: Mapping[str, str] | None
    """The files that a GGUF file's metadata make; None for a directory, which has them."""

    @classmethod
    def of(cls, model: Path) -> "CheckpointFiles":
        """Of a GGUF file or a Hugging Face directory. Raises UnreadableCheckpoint."""
        if model.is_dir():
            return cls(model, None)
        try:
            file = GgufFile.open(model)
            metadata = {key: file.get(key) for key in file.keys if key.startswith(_TEXT_KEYS)}
            return cls(model, tokenizer_files(metadata))
        except GgufError as error:
            raise UnreadableCheckpoint(str(error)) from error
        except UnsupportedGguf as error:
            raise UnreadableCheckpoint(f"{model}: {error}") from error

    def read(self, name: str) -> str | None:
        """None where there is no such file. Raises UnreadableCheckpoint."""
        return read_file(self._model / name) if self._made is None else self._made.get(name)

    def place(self, name: str) -> str:
        """The file in words, for messages."""
        return str(self._model / name) if self._made is None else f"{name} of {self._model}"


def read_file(path: Path) -> str | None:
    """None where there is no such file. Raises UnreadableCheckpoint."""
    try:
        return read_text(path, most_bytes=_MOST_BYTES.get(path.name, MOST_JSON_BYTES))
    except UnreadableFile as error:
        raise UnreadableCheckpoint(str(error)) from error
