"""Reading a checkpoint's tensors: safetensors, in one file or sharded by the index's weight_map.

Must not know: model families, devices other than the CPU's memory, what a tensor is for.

Files are mapped, and each tensor is copied once, into its place in the parameter that the caller gets. A parameter is always
fp32: every fp32, bf16 and fp16 value is an fp32 value, so up-converting a 16-bit checkpoint changes nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import torch
from safetensors import SafetensorError, safe_open

from layered_llm.runtime.device import DeviceError

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
_NAMES_SHOWN: Final = 8

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_NAMES: Final = ("auto", *_DTYPES)


class CheckpointError(DeviceError):
    """The checkpoint is missing, broken, or not that of the configured model."""


@attrs.define
class CheckpointReader:
    """Hands out a checkpoint's tensors by their names in the file, and keeps count of them.

    `dtype` "auto" keeps the checkpoint's values; a name of a precision rounds them to it first, which is lossy where the
    checkpoint's is higher. The precision of computation is fp32 either way.
    """

    _files: dict[str, Any]
    """The open file of each tensor."""
    _rounding: torch.dtype | None
    _taken: set[str] = attrs.Factory(set)
    _missing: list[str] = attrs.Factory(list)
    _dtypes: set[str] = attrs.Factory(set)

    @classmethod
    def open(cls, model_dir: Path, *, dtype: str) -> "CheckpointReader":
        """Raises CheckpointError where `model_dir` holds no readable safetensors checkpoint or `dtype` has no such name."""
        if dtype not in DTYPE_NAMES:
            raise CheckpointError(f"dtype {dtype!r} is not supported, only {', '.join(DTYPE_NAMES)}")
        files: dict[str, Any] = {}
        for path in _checkpoint_files(model_dir):
            opened = _open_file(path)
            files |= dict.fromkeys(opened.keys(), opened)
        return cls(files, _DTYPES.get(dtype))

    @property
    def dtypes(self) -> str:
        """Precisions of the tensors taken so far, as safetensors names them."""
        return "+".join(sorted(self._dtypes))

    def parameter_bytes(self) -> int:
        """What all tensors of the checkpoint take as fp32."""
        return sum(4 * _elements(file.get_slice(name).get_shape()) for name, file in self._files.items())

    def read(self, name: str, *shape: int) -> torch.Tensor:
        """The fp32 tensor `name`, which must have this shape."""
        return self.read_merged([name], [shape[0]], *shape[1:])

    def read_merged(self, names: Sequence[str], lengths: Sequence[int], *rest: int) -> torch.Tensor:
        """The tensors `names`, the k-th of shape [lengths[k], *rest], one behind the other: fp32 [sum(lengths), *rest].

        What the checkpoint lacks is noted for `finish`. Raises CheckpointError for another shape.
        """
        merged = torch.empty((sum(lengths), *rest), dtype=torch.float32)
        parts = merged.split(list(lengths))
        for name, part in zip(names, parts, strict=True):
            if name in self._files:
                self._copy(name, part)
            else:
                self._missing.append(name)
        return merged

    def skip(self, name: str) -> None:
        """`name` may be in the checkpoint but is not needed."""
        self._taken.add(name)

    def finish(self) -> None:
        """Closes the files. Raises CheckpointError where tensors were missing, or are in the file and nobody asked for them."""
        unexpected = sorted(name for name in self._files.keys() - self._taken if not name.endswith(".rotary_emb.inv_freq"))
        self._files.clear()
        if self._missing:
            raise CheckpointError(f"the checkpoint lacks {_listed(self._missing)}")
        if unexpected:
            raise CheckpointError(f"the checkpoint has tensors that the configured model does not use: {_listed(unexpected)}")

    def _copy(self, name: str, destination: torch.Tensor) -> None:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if tensor.shape != destination.shape:
            raise CheckpointError(
                f"tensor {name} has shape {list(tensor.shape)}, but the config asks for {list(destination.shape)}"
            )
        if tensor.dtype not in _DTYPES.values():
            raise CheckpointError(f"tensor {name} is {_dtype_name(tensor)}; supported are {', '.join(_DTYPES)}")
        self._taken.add(name)
        self._dtypes.add(_dtype_name(tensor))
        destination.copy_(tensor if self._rounding is None else self._rounded(name, tensor, self._rounding))

    def _rounded(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        rounded = tensor.to(dtype)
        if dtype == torch.float16 and not rounded.isfinite().all():
            raise CheckpointError(f"tensor {name} has values that do not fit float16")
        return rounded


def _checkpoint_files(model_dir: Path) -> list[Path]:
    index_path = model_dir / INDEX_FILE
    if not index_path.exists():
        return [model_dir / SINGLE_FILE]
    try:
        weight_map = json.loads(index_path.read_text(encoding="utf-8"))["weight_map"]
        return [model_dir / name for name in sorted(set(weight_map.values()))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index_path} is not an index of safetensors files: {error!r}") from error


def _open_file(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
