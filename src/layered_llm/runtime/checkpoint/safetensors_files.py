"""Finds the tensors of a Hugging Face directory: safetensors, in one file or sharded by the index's weight_map.

Must not know: models, what a tensor is for.

Format: 8 bytes of little-endian header length, a JSON header with each tensor's type, shape and byte range in what follows
(https://github.com/huggingface/safetensors, "Format"). Files are mapped: a tensor is read in place.
"""

import math
import mmap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from layered_llm.formats.untrusted_files import (
    MOST_JSON_BYTES,
    UnreadableFile,
    is_regular,
    map_file,
    parse_json,
    read_json,
    shown,
)
from layered_llm.runtime.checkpoint.matrices import WeightMatrix
from layered_llm.runtime.checkpoint.stored_tensors import CheckpointError, MappedRange, StoredTensor, weight_format

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
_LENGTH_BYTES: Final = 8
_NAME_SHOWN: Final = 80
_ENTRY_SHOWN: Final = 120
_MOST_HEADER_BYTES: Final = MOST_JSON_BYTES
"""The format allows 100 MB, which would take 2 GB when it is parsed; a decoder of 100 layers needs 0.1 MB."""
_MOST_DIMENSIONS: Final = 8
_TOO_LARGE: Final = 1 << 63
_SUPPORTED: Final = MappingProxyType({"F32": "float32", "BF16": "bfloat16", "F16": "float16"})
"""Types that are read, with the names that torch has for them."""


def safetensors_of(model_dir: Path) -> dict[str, StoredTensor]:
    """All tensors by their names. Raises CheckpointError where there is no readable checkpoint.

    A single file counts before an index, as in transformers: an index beside it is left over from the model's shards. The index
    has the last word on which of its files has a tensor, if several have it.
    """
    single = model_dir / SINGLE_FILE
    weight_map = None if is_regular(single) else _weight_map(model_dir / INDEX_FILE)
    if weight_map is None:
        return _tensors(single)
    files = {name: _tensors(model_dir / name) for name in sorted(set(weight_map.values()))}
    tensors: dict[str, StoredTensor] = {}
    for found in files.values():
        tensors |= found
    return tensors | {name: files[place][name] for name, place in weight_map.items() if name in files[place]}


def _weight_map(index: Path) -> Mapping[str, str] | None:
    """The files by the names of the tensors in them; None where there is no index."""
    try:
        content = read_json(index)
    except UnreadableFile as error:
        raise CheckpointError(str(error)) from error
    if content is None:
        return None
    match content.get("weight_map"):
        case dict() as weight_map if weight_map and all(isinstance(name, str) for name in weight_map.values()):
            outside = next((name for name in weight_map.values() if Path(name).is_absolute() or ".." in Path(name).parts), None)
            if outside is not None:
                raise CheckpointError(f"{shown(index)} names {shown(outside)}, which is outside of the model's directory")
            return weight_map
        case _:
            raise CheckpointError(f"{shown(index)} is not an index of safetensors files: it has no weight_map of their names")


def _tensors(path: Path) -> dict[str, StoredTensor]:
    try:
        mapping = map_file(path)
    except UnreadableFile as error:
        raise CheckpointError(str(error)) from error
    try:
        header, data_begin = _header(mapping)
        return {name: _tensor(name, entry, mapping, data_begin) for name, entry in header.items() if name != "__metadata__"}
    except (UnreadableFile, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{shown(path)} is not a readable safetensors file: {error}") from error


def _header(mapping: mmap.mmap) -> tuple[Mapping[str, Any], int]:
    length = int.from_bytes(mapping[:_LENGTH_BYTES], "little")
    if length > len(mapping) - _LENGTH_BYTES:
        raise ValueError(f"a header of {length} bytes does not fit; it is cut off, or broken")
    if length > _MOST_HEADER_BYTES:
        raise ValueError(f"it has a header of {length} bytes; at most {_MOST_HEADER_BYTES} are read")
    end = _LENGTH_BYTES + length
    return parse_json(mapping[_LENGTH_BYTES:end].decode(), "its header", is_repetition_refused=True), end


def _tensor(name: str, entry: object, mapping: mmap.mmap, data_begin: int) -> StoredTensor:
    if not name.isprintable():
        raise ValueError(f"the name {shown(name[:_NAME_SHOWN])} cannot be printed")
    match entry:
        case {"dtype": str() as type_name, "shape": list() as sizes, "data_offsets": [begin, end]} if _are_sizes(
            sizes, begin, end
        ):
            shape = tuple(sizes)
        case _:
            raise ValueError(f"tensor {name[:_NAME_SHOWN]} is described as {entry!r:.{_ENTRY_SHOWN}}")
    if data_begin + end > len(mapping):
        raise ValueError(
            f"tensor {name} ends at byte {data_begin + end}, but the file at {len(mapping)}; it is cut off, or broken"
        )
    kind = weight_format(type_name) if type_name in _SUPPORTED else None
    if kind is not None and math.prod(shape) * kind.block_bytes != end - begin:
        raise ValueError(f"tensor {name} of shape {list(shape)} and type {type_name} has {end - begin} bytes")
    place = MappedRange(mapping, data_begin + begin, end - begin)
    read = partial(_refuse, name, type_name) if kind is None or not shape else partial(place.matrix, kind, shape)
    return StoredTensor(type_name=_SUPPORTED.get(type_name, type_name), shape=shape, read=read, forget=place.forget)


def _are_sizes(shape: list[Any], begin: object, end: object) -> bool:
    """Whether these are plausible numbers, few and small enough to be multiplied."""
    numbers = (*shape, begin, end)
    return len(shape) <= _MOST_DIMENSIONS and all(type(number) is int and 0 <= number < _TOO_LARGE for number in numbers)


def _refuse(name: str, type_name: str) -> WeightMatrix:
    raise CheckpointError(f"tensor {name} is {type_name}; supported are {', '.join(_SUPPORTED.values())}")
