"""Converts a GGUF file into a Hugging Face directory: each sibling package makes its own files, this module joins them.

Must not know: either format.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from layered_llm.runtime.gguf_weights import GgufModel
from layered_llm.runtime.safetensors_writer import write_safetensors
from layered_llm.text.gguf_tokenizer import tokenizer_files

_BYTES_OF_FP32 = 4


def convert_gguf(source: Path, directory: Path, check_cancelled: Callable[[], None] = lambda: None) -> None:
    """Writes config, weights as fp32 and tokenizer of `source` into `directory`, with a progress bar on standard error.

    `check_cancelled` is called between tensors; what it raises ends the conversion.

    Raises GgufError or UnsupportedGguf for a file that cannot be converted, OSError when the disk does not take it.
    """
    with tqdm(desc=f"reading {source.name}", total=1, bar_format="{desc}") as _opening:
        model = GgufModel.open(source)
    shapes = model.shapes()
    total_bytes = sum(int(np.prod(shape)) for shape in shapes.values()) * _BYTES_OF_FP32
    with tqdm(desc=f"converting {source.name}, once", total=total_bytes, unit="B", unit_scale=True) as progress:
        write_safetensors(directory / "model.safetensors", shapes, _counted(model, progress, check_cancelled))
    for name, content in tokenizer_files(model.tokenizer_metadata()).items():
        (directory / name).write_text(content)
    (directory / "config.json").write_text(json.dumps(model.config_json(), indent=2))


def _counted(
    model: GgufModel, progress: "tqdm[None]", check_cancelled: Callable[[], None]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, tensor in model.tensors():
        check_cancelled()
        yield name, tensor
        progress.update(tensor.nbytes)
