from pathlib import Path
from typing import Any

import attrs
import pytest

from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.model_files import read_model
from layered_llm.runtime.simd.machine import Machine
from layered_llm.runtime.simd.support import machine_for
from support.runtime_checkpoints import make_checkpoint

WIDE = Machine(processor="znver4", features="", lanes=16, registers=32)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    directory: Path = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, head_dim=32)
    return read_model(directory).config


@pytest.mark.parametrize(
    ("sizes", "lanes"),
    [
        ({}, 16),
        ({"head_dim": 48}, 16),
        ({"head_dim": 40}, 8),
        ({"head_dim": 16}, 8),
        ({"hidden_size": 72}, 8),
        ({"intermediate_size": 104}, 8),
    ],
)
def test_vectors_are_no_wider_than_the_models_sizes_fill(sizes: dict[str, Any], lanes: int, config: ModelConfig) -> None:
    assert attrs.evolve(WIDE, lanes=lanes) == machine_for(attrs.evolve(config, **sizes), WIDE)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"head_dim": 20}, "the model's head_dim of 20 is no multiple of 8"),
        ({"head_dim": 8}, "the model's head_dim of 8 is below 16"),
        ({"hidden_size": 60}, "the model's hidden_size of 60 is no multiple of 8"),
        ({"intermediate_size": 100}, "the model's intermediate_size of 100 is no multiple of 8"),
    ],
)
def test_sizes_that_fill_no_vector_are_named(sizes: dict[str, Any], told: str, config: ModelConfig) -> None:
    assert told == machine_for(attrs.evolve(config, **sizes), WIDE)
