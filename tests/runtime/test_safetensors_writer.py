from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.safetensors_writer import write_safetensors


def array(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_what_is_written_is_read_back_by_the_library(tmp_path: Path) -> None:
    tensors = {"a": array(2, 3), "b.weight": array(5), "c": array(3, 2).T}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {name: tensor.shape for name, tensor in tensors.items()}, iter(tensors.items()))
    read = load_file(path)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: tensor.tolist() for name, tensor in read.items()
    }


@pytest.mark.parametrize(
    "tensors",
    [
        [("a", array(2))],
        [("a", array(3)), ("b", array(1))],
        [("b", array(1))],
        [("a", array(2)), ("b", array(1)), ("c", array(1))],
    ],
)
def test_other_tensors_than_promised_are_our_fault_and_leave_no_file(
    tensors: list[tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]], tmp_path: Path
) -> None:
    with pytest.raises(InvariantViolated):
        write_safetensors(tmp_path / "model.safetensors", {"a": (2,), "b": (1,)}, tensors)
    assert [] == list(tmp_path.iterdir())
