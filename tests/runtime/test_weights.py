import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from layered_llm.runtime.weights import CheckpointError, CheckpointReader


def write(directory: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_merged_tensors_lie_one_behind_the_other(tmp_path: Path) -> None:
    write(tmp_path, a=torch.arange(6.0).view(2, 3), b=torch.arange(3.0).view(1, 3))
    reader = CheckpointReader.open(tmp_path, dtype="auto")
    assert [[0, 1, 2], [3, 4, 5], [0, 1, 2]] == reader.read_merged(["a", "b"], [2, 1], 3).tolist()
    reader.finish()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_precision_becomes_fp32_without_loss(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(1)).to(dtype)
    write(tmp_path, a=values)
    read = CheckpointReader.open(tmp_path, dtype="auto").read("a", 64)
    assert torch.float32 == read.dtype
    assert torch.equal(values, read.to(dtype))
    assert torch.equal(values.float(), read)


def test_a_named_precision_rounds_the_weights(tmp_path: Path) -> None:
    write(tmp_path, a=torch.tensor([1.0 + 2**-12]))
    assert [1.0] == CheckpointReader.open(tmp_path, dtype="bfloat16").read("a", 1).tolist()


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a=torch.tensor([1e6]))
    with pytest.raises(CheckpointError, match="a has values that do not fit float16"):
        CheckpointReader.open(tmp_path, dtype="float16").read("a", 1)


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype 'int3' is not supported"):
        CheckpointReader.open(tmp_path, dtype="int3")


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, a=torch.zeros(1))
    reader = CheckpointReader.open(tmp_path, dtype="auto")
    reader.read_merged(["b", "a", "c"], [1, 1, 1])
    with pytest.raises(CheckpointError, match="lacks b, c"):
        reader.finish()


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, **{"a": torch.zeros(1), "odd": torch.zeros(1), "layers.0.rotary_emb.inv_freq": torch.zeros(1)})
    reader = CheckpointReader.open(tmp_path, dtype="auto")
    reader.read("a", 1)
    with pytest.raises(CheckpointError, match=r"does not use: odd$"):
        reader.finish()


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a=torch.zeros(2, 3))
    with pytest.raises(CheckpointError, match=r"a has shape \[2, 3\], but the config asks for \[3, 2\]"):
        CheckpointReader.open(tmp_path, dtype="auto").read("a", 3, 2)


def test_a_tensor_of_integers_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a=torch.zeros(2, dtype=torch.int8))
    with pytest.raises(CheckpointError, match="a is int8"):
        CheckpointReader.open(tmp_path, dtype="auto").read("a", 2)


def test_shards_are_found_by_the_weight_map(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x-1.safetensors")
    save_file({"b": torch.zeros(1)}, tmp_path / "x-2.safetensors")
    weight_map = {"a": "x-1.safetensors", "b": "x-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    reader = CheckpointReader.open(tmp_path, dtype="auto")
    assert [1, 1, 0] == reader.read_merged(["a", "b"], [2, 1]).tolist()
    assert 12 == reader.parameter_bytes()
    reader.finish()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors does not exist"):
        CheckpointReader.open(tmp_path, dtype="auto")


def test_a_broken_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is not an index"):
        CheckpointReader.open(tmp_path, dtype="auto")


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        CheckpointReader.open(tmp_path, dtype="auto")
