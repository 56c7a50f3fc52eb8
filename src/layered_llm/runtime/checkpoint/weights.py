"""Hands out a checkpoint's tensors in the precision that is asked for, and keeps count of them.

Must not know: file formats, model families, torch, what a tensor is for.

Weights stay what the file says: where nothing has to be merged, converted or arranged a matrix is a view of the mapped file.
Only what is asked for is lossy: `dtype` other than "auto" re-encodes matrices, "int8" those alone that are no blocks of 8 bits
or fewer already, or are merged with others. Vectors (norms, biases) are fp32 always, which is exact.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

import attrs
import numpy as np

from layered_llm.runtime.checkpoint.matrices import WHOLE, Shard, Split, WeightFormat, WeightMatrix, encoded, merged
from layered_llm.runtime.checkpoint.panels import Matrix
from layered_llm.runtime.checkpoint.stored_tensors import CheckpointError, StoredTensor, listed
from layered_llm.runtime.device.step_inputs import Float32s

_MOST_MISSING: Final = 1000
_MOST_MISSING_NUMBERS: Final = 1 << 26
"""Of a tensor in whose place zeros are put until all that is missing is known."""

_DTYPES: Final[Mapping[str, WeightFormat | None]] = MappingProxyType(
    {
        "auto": None,
        "float32": WeightFormat.F32,
        "bfloat16": WeightFormat.BF16,
        "float16": WeightFormat.F16,
        "int8": WeightFormat.Q8_0,
    }
)
DTYPE_NAMES: Final = tuple(_DTYPES)
_BEYOND_FP16: Final = 65_520.0
"""Numbers from here on become infinite in fp16."""
_BEYOND: Final = MappingProxyType({WeightFormat.F16: _BEYOND_FP16, WeightFormat.Q8_0: 127 * _BEYOND_FP16})


def as_it_is(matrix: WeightMatrix) -> Matrix:
    """Where matrices are computed with as they are read."""
    return matrix


@attrs.define
class CheckpointReader:
    """Gives each tensor once. What the checkpoint lacks is noted, and told by `finish`."""

    _tensors: Mapping[str, StoredTensor]
    _format: WeightFormat | None
    """None: each tensor's own."""
    _arrange: Callable[[WeightMatrix], Matrix]
    """Gives a matrix the form that is computed with."""
    shard: Shard
    """The part that is read of what is split; names, tensors that are missing and not used are those of the whole."""
    _taken: set[str] = attrs.Factory(set)
    _missing: list[str] = attrs.Factory(list)
    _has_converted: bool = False

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, StoredTensor],
        *,
        dtype: str,
        arrange: Callable[[WeightMatrix], Matrix] = as_it_is,
        shard: Shard = WHOLE,
    ) -> "CheckpointReader":
        """Raises CheckpointError where `dtype` has no such name."""
        if dtype not in _DTYPES:
            raise CheckpointError(f"dtype {dtype!r} is not supported, only {', '.join(DTYPE_NAMES)}")
        return cls(tensors, _DTYPES[dtype], arrange, shard)

    @property
    def types(self) -> str:
        """Types of the tensors taken so far, as their files name them, and what they were converted to."""
        own = "+".join(sorted({self._tensors[name].type_name for name in self._taken}))
        return f"{own} as {self._format.label}" if self._format is not None and self._has_converted else own

    def vector(self, names: Sequence[str], lengths: Sequence[int], *, is_split: bool = False) -> Float32s:
        """The vectors `names`, one after the other: fp32 [sum(lengths)], the k-th lengths[k] of this rank, if it is split.

        Raises CheckpointError for another shape.
        """
        shard = self.shard if is_split else WHOLE
        parts = self._parts(names, [(length * shard.size,) for length in lengths])
        return np.concatenate([part.dequantized()[0, shard.part(length)] for part, length in zip(parts, lengths, strict=True)])

    def matrix(self, names: Sequence[str], rows: Sequence[int], columns: int, split: Split = Split.ROWS) -> Matrix:
        """The matrices `names`, of the k-th this rank's [rows[k], columns], one below the other: in the file's own format, or
        in that of `dtype`; parts of several formats as fp32, if `dtype` does not say another.

        Raises CheckpointError for another shape, and for numbers that the asked-for format cannot hold.
        """
        height, width = (self.shard.size, 1) if split is Split.ROWS else (1, self.shard.size)
        wholes = self._parts(names, [(count * height, columns * width) for count in rows])
        parts = [self._own(name, whole, split) for name, whole in zip(names, wholes, strict=True)]
        target = self._target({part.format for part in parts})
        if target is None:
            whole = merged(parts)
        else:
            whole = merged([self._converted(name, part, target) for name, part in zip(names, parts, strict=True)])
        arranged = self._arrange(whole)
        if arranged is not parts[0]:
            self._forget(names)
        return arranged

    def _own(self, name: str, matrix: WeightMatrix, split: Split) -> WeightMatrix:
        """This rank's part."""
        if self.shard.size == 1:
            return matrix
        block, columns = matrix.format.block_columns, matrix.columns // self.shard.size
        if split is Split.COLUMNS and columns % block:
            raise CheckpointError(
                f"tensor {name} has rows of {matrix.columns} numbers as {matrix.format.label}, and {self.shard.size} ranks "
                f"would split its blocks of {block}"
            )
        part = matrix.part(self.shard, split)
        if split is Split.COLUMNS:
            self._forget([name])
        return part

    def _target(self, stored: AbstractSet[WeightFormat]) -> WeightFormat | None:
        """What matrices that are stored so, and merged, become; None: what they are.

        Rounding blocks of 4 bits to others of 8 would take memory and exactness, and give nothing.
        """
        is_mixed = len(stored) > 1
        if self._format is WeightFormat.Q8_0 and not is_mixed and all(each.block_columns > 1 for each in stored):
            return None
        if self._format is not None and stored != {self._format}:
            self._has_converted = True
        return self._format or (WeightFormat.F32 if is_mixed else None)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def are_equal(self, name: str, other: str) -> bool:
        """Whether two tensors that the checkpoint has are the same numbers. Raises CheckpointError where one cannot be read."""
        first, second = self._tensors[name], self._tensors[other]
        if first.shape != second.shape:
            return False
        one, two = first.read(), second.read()
        if one.format is two.format:
            return np.array_equal(one.data, two.data)
        return np.array_equal(one.dequantized(), two.dequantized())

    def skip(self, name: str) -> None:
        """`name` may be in the checkpoint but is not needed."""
        if name in self._tensors:
            self._taken.add(name)

    def finish(self) -> None:
        """Raises CheckpointError where tensors were missing, or are in the file and nobody asked for them."""
        left = sorted(name for name in self._tensors.keys() - self._taken if not name.endswith(".rotary_emb.inv_freq"))
        if self._missing:
            raise self._lack()
        if left:
            raise CheckpointError(f"the checkpoint has tensors that the configured model does not use: {listed(left)}")

    def _parts(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Iterator[WeightMatrix]:
        for name, shape in zip(names, shapes, strict=True):
            if name in self._tensors:
                yield self._read(name, shape)
            else:
                self._note_missing(name, shape)
                yield encoded(np.zeros((math.prod(shape[:-1]), shape[-1]), np.float32), WeightFormat.F32)

    def _note_missing(self, name: str, shape: tuple[int, ...]) -> None:
        """A config may ask for more than any memory holds: then it ends here, and not with all that is missing."""
        self._missing.append(name)
        if len(self._missing) > _MOST_MISSING or math.prod(shape) > _MOST_MISSING_NUMBERS:
            raise self._lack()

    def _lack(self) -> CheckpointError:
        return CheckpointError(f"the checkpoint lacks {listed(self._missing)}")

    def _read(self, name: str, shape: tuple[int, ...]) -> WeightMatrix:
        tensor = self._tensors[name]
        if tensor.shape != shape:
            raise CheckpointError(f"tensor {name} has shape {list(tensor.shape)}, but the config asks for {list(shape)}")
        self._taken.add(name)
        return tensor.read()

    def _converted(self, name: str, matrix: WeightMatrix, weight_format: WeightFormat) -> WeightMatrix:
        if matrix.format is weight_format:
            return matrix
        if matrix.columns % weight_format.block_columns:
            raise CheckpointError(
                f"tensor {name} has rows of {matrix.columns} numbers, but dtype {self._dtype_name()} scales "
                f"{weight_format.block_columns} of them together"
            )
        values = matrix.dequantized()
        if weight_format in _BEYOND and max(values.max(), -values.min()) >= _BEYOND[weight_format]:
            raise CheckpointError(f"tensor {name} has values that do not fit {self._dtype_name()}")
        return encoded(values, weight_format)

    def _dtype_name(self) -> str:
        return next(name for name, weight_format in _DTYPES.items() if weight_format is self._format)

    def _forget(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._tensors:
                self._tensors[name].forget()
