"""A model on disk, whatever its format: its configuration, and its weights by their Hugging Face names.

Must not know: torch, what becomes of the weights.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from layered_llm.runtime.checkpoint.safetensors_files import safetensors_of
from layered_llm.runtime.checkpoint.stored_tensors import StoredTensor
from layered_llm.runtime.models.config_json import CONFIG_FILE, find_config_json
from layered_llm.runtime.models.gguf_model import GgufModel
from layered_llm.runtime.models.model_config import ModelConfig, ModelConfigError
from layered_llm.runtime.models.registry import Family, family_of


@attrs.frozen
class ModelFiles:
    """What was found."""

    config: ModelConfig
    family: Family
    tensors: Callable[[], Mapping[str, StoredTensor]]
    """Opens the weights, which are not read yet. Raises CheckpointError."""


def read_model(model: Path) -> ModelFiles:
    """Of a GGUF file or a Hugging Face directory. Raises CheckpointError and ModelConfigError, each of one line."""
    if not model.is_dir():
        file = GgufModel.open(model)
        return ModelFiles(file.config(), file.family, file.tensors)
    raw = find_config_json(model)
    if raw is None:
        raise ModelConfigError(f"{model / CONFIG_FILE} does not exist")
    family = family_of(raw)
    return ModelFiles(family.parse(raw), family, partial(safetensors_of, model))


def read_raw_config(model: Path) -> Mapping[str, Any]:
    """What config.json says, or would say; empty for a directory without one. Raises as `read_model`."""
    if not model.is_dir():
        return GgufModel.open(model).config_json()
    return find_config_json(model) or {}
