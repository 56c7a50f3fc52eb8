"""Writes a safetensors file tensor by tensor, so that a conversion never holds the whole model.

Must not know: where the tensors come from.

Format: 8 bytes of little-endian header length, a JSON header with each tensor's type, shape and byte range, then the data
(https://github.com/huggingface/safetensors, "Format").
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated

_FP32_BYTES: Final = 4
_ALIGNMENT_BYTES: Final = 8


def write_safetensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, NDArray[np.float32]]]
) -> None:
    """Writes fp32 `tensors`, which come in the order and with the shapes of `shapes`; `path` appears complete or not at all.

    Raises OSError where the disk does not take it, and InvariantViolated for tensors other than the promised ones.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(_header(shapes))
            promised = iter(shapes.items())
            for name, tensor in tensors:
                if next(promised, None) != (name, tensor.shape):
                    raise InvariantViolated(f"tensor {name} of shape {tensor.shape} is not the next one promised")
                file.write(np.ascontiguousarray(tensor, "<f4").data)
            if next(promised, None) is not None:
                raise InvariantViolated("fewer tensors came than were promised")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape) * _FP32_BYTES
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text
