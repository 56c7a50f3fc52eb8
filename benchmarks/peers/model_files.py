"""The default model's weights in the formats of the peers: one GGUF file in several precisions, and a Hugging Face directory.

    python -m benchmarks.peers.model_files FILE.gguf DIRECTORY

Every number is the one that the given file's blocks stand for; f16 and Q8_0 round it, as llama.cpp's own quantizer does.
"""

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Format
from tqdm import tqdm

FORMATS: Final[Mapping[str, Format]] = MappingProxyType({"F32": Format.F32, "F16": Format.F16, "Q8_0": Format.Q8_0})
SKIPPED_KEYS: Final = ("GGUF.", "general.architecture", "general.file_type")
"""Of the file itself, or written by the library."""
HUGGING_FACE: Final = "hugging_face"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a GGUF file of any precision")
    parser.add_argument("directory", type=Path, help="where the files go; those that are there are kept")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    missing = {name: kind for name, kind in FORMATS.items() if not (arguments.directory / f"{name}.gguf").exists()}
    if missing:
        reader = gguf.GGUFReader(arguments.source)
        for name, kind in missing.items():
            write_gguf(reader, kind, arguments.directory / f"{name}.gguf")
    if not (arguments.directory / HUGGING_FACE).exists():
        write_hugging_face(arguments.source, arguments.directory / HUGGING_FACE)


def write_gguf(reader: Any, kind: Format, path: Path) -> None:
    """The same metadata and tensors; matrices in the precision `kind`, vectors in fp32. Appears complete or not at all."""
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, arch=reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if not key.startswith(SKIPPED_KEYS):
            kinds = field.types
            writer.add_key_value(key, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    for tensor in tqdm(reader.tensors, desc=f"writing {path.name}, once"):
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        own = kind if values.ndim > 1 else Format.F32
        writer.add_tensor(tensor.name, gguf.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)


def write_hugging_face(source: Path, directory: Path) -> None:
    """By transformers' own reader of GGUF files, in fp32. Appears complete or not at all."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - seconds, for what is made once

    unfinished = Path(tempfile.mkdtemp(dir=directory.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype="float32")
        # It is marked as quantized, which cannot be saved, though its weights are plain fp32 by now.
        plain = AutoModelForCausalLM.from_config(_plain(model.config))
        plain.load_state_dict(model.state_dict())
        plain.save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(unfinished)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _plain(config: Any) -> Any:
    """`config` without what it says of quantization."""
    values = config.to_dict()
    values.pop("quantization_config", None)
    return type(config).from_dict(values)


if __name__ == "__main__":
    main()
