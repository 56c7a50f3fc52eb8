"""Finds the tensors of a Hugging Face directory: safetensors, in one file or sharded by the index's weight_map.

Must not know: models, what a tensor is for.

Format: 8 bytes of little-endian header length, a JSON header with each tensor's type, shape and byte range in what follows
(https://github.com/huggingface/safetensors, "Format"). Files are mapped: a tensor is read in place.
"""

import json
import math
import mmap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from layered_llm.runtime.matrices import WeightMatrix
from layered_llm.runtime.stored_tensors import CheckpointError, MappedRange, StoredTensor, weight_format

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
_LENGTH_BYTES: Final = 8
_NAME_SHOWN: Final = 80
_MOST_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""
_SUPPORTED: Final = MappingProxyType({"F32": "float32", "BF16": "bfloat16", "F16": "float16"})
"""Types that are read, with the names that torch has for them."""


def safetensors_of(model_dir: Path) -> dict[str, StoredTensor]:
    """All tensors by their names. Raises CheckpointError where there is no readable checkpoint."""
    tensors: dict[str, StoredTensor] = {}
    for path in _files(model_dir):
        tensors |= _tensors(path)
    return tensors


def _files(model_dir: Path) -> list[Path]:
    index_path = model_dir / INDEX_FILE
    if not index_path.exists():
        return [model_dir / SINGLE_FILE]
    try:
        weight_map = json.loads(index_path.read_text(encoding="utf-8"))["weight_map"]
        return [model_dir / name for name in sorted(set(weight_map.values()))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index_path} is not an index of safetensors files: {error!r}") from error


def _tensors(path: Path) -> dict[str, StoredTensor]:
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header, data_begin = _header(mapping)
        return {name: _tensor(name, entry, mapping, data_begin) for name, entry in header.items() if name != "__metadata__"}
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error


def _header(mapping: mmap.mmap) -> tuple[Mapping[str, Any], int]:
    length = int.from_bytes(mapping[:_LENGTH_BYTES], "little")
    if length > min(_MOST_HEADER_BYTES, len(mapping) - _LENGTH_BYTES):
        raise ValueError(f"a header of {length} bytes does not fit; it is cut off, or broken")
    end = _LENGTH_BYTES + length
    header = json.loads(mapping[_LENGTH_BYTES:end])
    if not isinstance(header, dict):
        raise TypeError("its header is no JSON object")
    return header, end


def _tensor(name: str, entry: Mapping[str, Any], mapping: mmap.mmap, data_begin: int) -> StoredTensor:
    type_name, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not name.isprintable():
        raise ValueError(f"the name {name[:_NAME_SHOWN]!r} cannot be printed")
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)) or end < begin:
        raise ValueError(f"tensor {name} has shape {entry['shape']} and offsets {entry['data_offsets']}")
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


def _refuse(name: str, type_name: str) -> WeightMatrix:
    raise CheckpointError(f"tensor {name} is {type_name}; supported are {', '.join(_SUPPORTED.values())}")
