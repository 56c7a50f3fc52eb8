import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from layered_llm.runtime.checkpoint.matrices import WeightFormat, WeightMatrix
from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, Matrix, PanelMatrix
from layered_llm.runtime.checkpoint.safetensors_files import safetensors_of
from layered_llm.runtime.checkpoint.stored_tensors import CheckpointError, StoredTensor
from layered_llm.runtime.checkpoint.weights import CheckpointReader

FORMATS = {torch.float32: WeightFormat.F32, torch.bfloat16: WeightFormat.BF16, torch.float16: WeightFormat.F16}


def write(directory: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, directory / "model.safetensors")
    return directory


def open_reader(directory: Path, *, dtype: str = "auto") -> CheckpointReader:
    return CheckpointReader.of(safetensors_of(directory), dtype=dtype)


def test_merged_matrices_lie_one_below_the_other(tmp_path: Path) -> None:
    write(tmp_path, a=torch.arange(6.0).view(2, 3), b=torch.arange(3.0).view(1, 3))
    reader = open_reader(tmp_path)
    assert [[0, 1, 2], [3, 4, 5], [0, 1, 2]] == reader.matrix(["a", "b"], [2, 1], 3).dequantized().tolist()
    reader.finish()


def test_merged_vectors_lie_one_behind_the_other(tmp_path: Path) -> None:
    write(tmp_path, a=torch.arange(2.0), b=torch.arange(3.0, dtype=torch.float16))
    assert [0, 1, 0, 1, 2] == open_reader(tmp_path).vector(["a", "b"], [2, 3]).tolist()


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_precision_is_read_in_place(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    matrix = open_reader(write(tmp_path, a=values)).matrix(["a"], [4], 64)
    assert (FORMATS[dtype], False, False) == (matrix.format, matrix.data.flags.owndata, matrix.data.flags.writeable)
    assert np.array_equal(values.float().numpy(), matrix.dequantized())


def test_parts_of_several_precisions_become_fp32(tmp_path: Path) -> None:
    write(tmp_path, a=torch.tensor([[1 / 3]]), b=torch.tensor([[0.1]]).to(torch.bfloat16))
    matrix = open_reader(tmp_path).matrix(["a", "b"], [1, 1], 1)
    expected = [[np.float32(1 / 3)], [torch.tensor(0.1).to(torch.bfloat16).item()]]
    assert (WeightFormat.F32, expected) == (matrix.format, matrix.dequantized().tolist())


def test_numbers_that_are_converted_stay_in_the_file(tmp_path: Path) -> None:
    values = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))  # pages that converting gives back to the system
    reader = open_reader(write(tmp_path, a=values), dtype="float16")
    reader.matrix(["a"], [64], 128)
    assert np.array_equal(values.numpy(), safetensors_of(tmp_path)["a"].read().dequantized())
    assert np.array_equal(np.float16(values.numpy()), reader.matrix(["a"], [64], 128).dequantized())


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", WeightFormat.BF16),
        ("float16", WeightFormat.F16),
        ("int8", WeightFormat.Q8_0),
        ("float32", WeightFormat.F32),
    ],
)
def test_a_named_precision_converts_matrices_but_not_vectors(dtype: str, expected: WeightFormat, tmp_path: Path) -> None:
    write(tmp_path, a=torch.full((1, 32), 1 / 3), b=torch.tensor([1 / 3]))
    reader = open_reader(tmp_path, dtype=dtype)
    assert expected is reader.matrix(["a"], [1], 32).format
    assert [np.float32(1 / 3)] == reader.vector(["b"], [1]).tolist()


def quantized(weight_format: WeightFormat, *, rows: int) -> StoredTensor:
    data = np.zeros((rows, weight_format.row_bytes(32)), np.uint8)
    data[:, 1] = 0x3C  # a scale of 1
    matrix = WeightMatrix(format=weight_format, rows=rows, columns=32, data=data)
    return StoredTensor(type_name=weight_format.label, shape=(rows, 32), read=lambda: matrix, forget=lambda: None)


@pytest.mark.parametrize("stored", [WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q8_0])
def test_blocks_of_8_bits_and_fewer_stay_what_they_are_as_int8(stored: WeightFormat) -> None:
    reader = CheckpointReader.of({"a": quantized(stored, rows=2)}, dtype="int8")
    assert (stored, stored.label) == (reader.matrix(["a"], [2], 32).format, reader.types)


def test_blocks_of_several_formats_that_are_merged_become_int8_together() -> None:
    tensors = {"a": quantized(WeightFormat.Q4_0, rows=1), "b": quantized(WeightFormat.Q4_1, rows=1)}
    reader = CheckpointReader.of(tensors, dtype="int8")
    assert WeightFormat.Q8_0 is reader.matrix(["a", "b"], [1, 1], 32).format
    assert "Q4_0+Q4_1 as Q8_0" == reader.types


@pytest.mark.parametrize(("is_copied", "forgotten"), [(True, ["a"]), (False, [])])
def test_what_is_arranged_anew_is_forgotten_in_the_file(is_copied: bool, forgotten: list[str]) -> None:
    told: list[str] = []
    stored = attrs.evolve(quantized(WeightFormat.Q4_1, rows=5), forget=lambda: told.append("a"))

    def arrange(matrix: WeightMatrix) -> Matrix:
        return PanelMatrix.of(matrix, FLOAT_PANELS, lambda count: np.zeros(count, np.uint8)) if is_copied else matrix

    matrix = CheckpointReader.of({"a": stored}, dtype="auto", arrange=arrange).matrix(["a"], [5], 32)
    assert (is_copied, forgotten) == (isinstance(matrix, PanelMatrix), told)
    assert stored.read().dequantized().tobytes() == matrix.dequantized().tobytes()


def test_parts_of_several_precisions_may_be_infinite(tmp_path: Path) -> None:
    write(tmp_path, a=torch.tensor([[torch.inf]]), b=torch.tensor([[1.0]]).to(torch.bfloat16))
    assert [[np.inf], [1.0]] == open_reader(tmp_path).matrix(["a", "b"], [1, 1], 1).dequantized().tolist()


def test_a_converted_number_is_the_nearest_one(tmp_path: Path) -> None:
    write(tmp_path, a=torch.tensor([[1.0 + 2**-12]]))
    assert [[1.0]] == open_reader(tmp_path, dtype="bfloat16").matrix(["a"], [1], 1).dequantized().tolist()


@pytest.mark.parametrize(("dtype", "value"), [("float16", 65_520.0), ("float16", -1e6), ("int8", 1e7)])
def test_values_beyond_the_named_precision_are_refused(dtype: str, value: float, tmp_path: Path) -> None:
    write(tmp_path, a=torch.full((1, 32), value))
    with pytest.raises(CheckpointError, match=f"a has values that do not fit {dtype}"):
        open_reader(tmp_path, dtype=dtype).matrix(["a"], [1], 32)


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a=torch.ones(2, 48))
    with pytest.raises(CheckpointError, match="a has rows of 48 numbers, but dtype int8 scales 32 of them together"):
        open_reader(tmp_path, dtype="int8").matrix(["a"], [2], 48)


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="dtype 'int3' is not supported"):
        open_reader(write(tmp_path, a=torch.ones(1)), dtype="int3")


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    reader = open_reader(write(tmp_path, a=torch.zeros(1)))
    reader.vector(["b", "a", "c"], [1, 1, 1])
    with pytest.raises(CheckpointError, match="lacks b, c"):
        reader.finish()


@pytest.mark.parametrize(("count", "columns"), [(1, 2**31), (2000, 1)])
def test_what_is_missing_is_told_before_it_takes_memory(count: int, columns: int, tmp_path: Path) -> None:
    reader = open_reader(write(tmp_path, a=torch.zeros(1)))
    with pytest.raises(CheckpointError, match="lacks layer0"):
        reader.matrix([f"layer{number}" for number in range(count)], [columns] * count, columns)


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, **{"a": torch.zeros(1), "odd": torch.zeros(1), "layers.0.rotary_emb.inv_freq": torch.zeros(1)})
    reader = open_reader(tmp_path)
    reader.vector(["a"], [1])
    with pytest.raises(CheckpointError, match=r"does not use: odd$"):
        reader.finish()


def test_a_tensor_that_is_skipped_may_be_there(tmp_path: Path) -> None:
    reader = open_reader(write(tmp_path, a=torch.zeros(1)))
    reader.skip("a")
    reader.skip("b")
    reader.finish()


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a has shape \[2, 3\], but the config asks for \[3, 2\]"):
        open_reader(write(tmp_path, a=torch.zeros(2, 3))).matrix(["a"], [3], 2)


@pytest.mark.parametrize(("dtype", "name"), [(torch.int8, "I8"), (torch.float64, "F64")])
def test_a_tensor_of_another_type_is_refused(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"a is {name}; supported are float32, bfloat16, float16"):
        open_reader(write(tmp_path, a=torch.zeros(2, dtype=dtype))).vector(["a"], [2])


def test_shards_are_found_by_the_weight_map(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x-1.safetensors")
    save_file({"b": torch.zeros(1)}, tmp_path / "x-2.safetensors")
    weight_map = {"a": "x-1.safetensors", "b": "x-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    reader = open_reader(tmp_path)
    assert [1, 1, 0] == reader.vector(["a", "b"], [2, 1]).tolist()
    assert "float32" == reader.types
    reader.finish()


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors does not exist"):
        safetensors_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "is not an index"),
        ("[]", "holds no JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ('{"weight_map": {}}', "is not an index"),
        ('{"weight_map": []}', "is not an index"),
        ('{"weight_map": {"a": ["x.safetensors"]}}', "is not an index"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "names /etc/passwd, which is outside of the model's directory"),
        ('{"weight_map": {"a": "x/../../b"}}', "names x/../../b, which is outside of the model's directory"),
        ('{"weight_map": {"a": "a\\u0000b"}}', r"'.*a\\x00b' cannot be read"),
        ('{"weight_map": {"a": "a\\nb"}}', r"'.*a\\nb' does not exist"),
    ],
)
def test_a_broken_index_is_refused_in_one_line(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=complaint) as caught:
        safetensors_of(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_single_file_counts_before_an_index_that_was_left_beside_it(tmp_path: Path) -> None:
    write(tmp_path, a=torch.ones(2))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert [1, 1] == open_reader(tmp_path).vector(["a"], [2]).tolist()


@pytest.mark.parametrize("place", ["x-1.safetensors", "x-2.safetensors"])
def test_the_index_says_which_copy_of_a_tensor_counts(place: str, tmp_path: Path) -> None:
    save_file({"a": torch.full((2,), 1.0), "b": torch.zeros(1)}, tmp_path / "x-1.safetensors")
    save_file({"a": torch.full((2,), 2.0), "c": torch.zeros(1)}, tmp_path / "x-2.safetensors")
    weight_map = {"a": place, "b": "x-1.safetensors", "c": "x-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert [float(place[2])] * 2 == open_reader(tmp_path).vector(["a"], [2]).tolist()


def test_a_link_that_cannot_be_followed_is_no_single_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("x" * 300)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: File name too long"):
        safetensors_of(tmp_path)
    save_file({"a": torch.ones(2)}, tmp_path / "x-1.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x-1.safetensors"}}))
    assert ["a"] == list(safetensors_of(tmp_path))


def test_weights_that_are_no_regular_file_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is a named pipe, not a regular file"):
        safetensors_of(tmp_path)


def file_of(header: object, data: bytes = bytes(16)) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x00" * 20, "its header is no valid JSON: Expecting value"),
        (b"\x01" + bytes(7) + b"\xff", "codec can't decode"),
        (b"\xff" * 20, "a header of 18446744073709551615 bytes does not fit"),
        (file_of([]), "no JSON object"),
        (file_of(entry(data_offsets=[0, 20], shape=[5])), "tensor a ends at byte .*, but the file at .*; it is cut off"),
        (file_of(entry(shape=[2, 3])), r"tensor a of shape \[2, 3\] and type F32 has 16 bytes"),
        (file_of(entry(shape=[-2, -2])), r"tensor a is described as .*\[-2, -2\]"),
        (file_of(entry(shape=[2.0, 2])), "tensor a is described as"),
        (file_of(entry(shape=[True, 4])), "tensor a is described as"),
        (file_of(entry(shape="22")), "tensor a is described as"),
        (file_of(entry(shape=[2**63, 0])), "tensor a is described as"),
        (file_of(entry(shape=[1] * 5000)), "tensor a is described as"),
        (file_of(entry(shape=[10**99] * 5000)), "tensor a is described as"),
        (file_of(entry(shape=[10**4000] * 500)), "a number has 4001 digits"),
        (file_of(entry(shape=[10**4000] * 5000)), "it has a header of 200150.. bytes; at most 16777216 are read"),
        (file_of(entry(data_offsets=[16, 0])), "tensor a of shape .* has -16 bytes"),
        (file_of(entry(data_offsets=[0])), "tensor a is described as"),
        (file_of(entry(data_offsets={"0": 1, "1": 2})), "tensor a is described as"),
        (file_of(entry(dtype=["F32"])), "tensor a is described as"),
        (file_of({"a\nb": entry()["a"]}), r"the name 'a\\nb' cannot be printed"),
        (file_of({"a": {}}), "tensor a is described as {}"),
        (file_of({"a": 3}), "tensor a is described as 3"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "its header is nested too deeply"),
        (struct.pack("<Q", 16) + b'{"a": 1, "a": 2}', "it has a twice"),
        (struct.pack("<Q", 1 << 25) + bytes(1 << 25), "a header of 33554432 bytes; at most 16777216 are read"),
    ],
)
def test_a_broken_file_is_refused_by_name(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors is not a readable safetensors file: .*{complaint}"
    ) as caught:
        safetensors_of(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_header_that_is_damaged_anywhere_raises_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, a=torch.ones(2, 3), b=torch.zeros(4))
    path = tmp_path / "model.safetensors"
    whole, chance = path.read_bytes(), random.Random(0)
    header_bytes, refusals = 8 + int.from_bytes(whole[:8], "little"), []
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(header_bytes)] = chance.choice(b'{}[]":,0123456789-ae\\u \0\xff')
        path.write_bytes(damaged)
        try:
            safetensors_of(tmp_path)
        except CheckpointError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert "\n" not in "".join(refusals)
