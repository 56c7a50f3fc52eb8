"""The default model as a Hugging Face directory with fp32 weights, for what only transformers can say of it."""

import json
from pathlib import Path

from safetensors.numpy import save_file

from layered_llm.runtime.models.gguf_model import GgufModel
from layered_llm.text.checkpoint_text import CheckpointFiles

TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def write_hugging_face(source: Path, directory: Path) -> Path:
    """Fills `directory` from the GGUF file `source`; every number is kept."""
    model = GgufModel.open(source)
    tensors = {name: tensor.read().dequantized().reshape(tensor.shape) for name, tensor in model.tensors().items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    files = CheckpointFiles.of(source)
    for name in TEXT_FILES:
        content = files.read(name)
        if content is not None:
            (directory / name).write_text(content, encoding="utf-8")
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **model.config_json()}, indent=1))
    return directory
