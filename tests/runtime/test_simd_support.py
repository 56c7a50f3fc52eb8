from pathlib import Path
from typing import Any

import attrs
import pytest

from layered_llm.runtime.cpu.simd.kernels.machine import Machine
from layered_llm.runtime.cpu.simd.support import machine_for
from layered_llm.runtime.models.model_config import GatedSpec, ModelConfig
from layered_llm.runtime.models.model_files import read_model
from support.runtime_checkpoints import make_checkpoint

WIDE = Machine(processor="znver4", features="", lanes=16, registers=32, has_byte_products=True)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    directory: Path = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, head_dim=32)
    return read_model(directory).config


def resized(config: ModelConfig, *, intermediate_size: int = 96, **sizes: Any) -> ModelConfig:
    mlp = GatedSpec(intermediate_size=intermediate_size, has_bias=False)
    return attrs.evolve(config, layers=tuple(attrs.evolve(layer, mlp=mlp) for layer in config.layers), **sizes)


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
    found = machine_for(resized(config, **sizes), WIDE)
    assert isinstance(found, Machine)
    assert (attrs.evolve(WIDE, lanes=lanes)) == attrs.evolve(found, has_byte_products=True)


@pytest.mark.parametrize(
    ("sizes", "has_byte_products"),
    [
        ({}, True),
        ({"head_dim": 48}, True),
        ({"head_dim": 48, "heads": 2}, False),
        ({"head_dim": 16}, True),
        ({"hidden_size": 80}, False),
        ({"intermediate_size": 112}, False),
    ],
)
@pytest.mark.parametrize("has_them", [True, False])
def test_bytes_are_multiplied_where_whole_blocks_are_computed_at_once(
    sizes: dict[str, Any], has_byte_products: bool, has_them: bool, config: ModelConfig
) -> None:
    found = machine_for(resized(config, **sizes), attrs.evolve(WIDE, has_byte_products=has_them))
    assert isinstance(found, Machine)
    assert (has_byte_products and has_them) == found.has_byte_products


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
    assert told == machine_for(resized(config, **sizes), WIDE)


def test_layers_that_are_not_of_one_size_are_named(config: ModelConfig) -> None:
    layers = (config.layers[0], resized(config, intermediate_size=128).layers[1])
    expected = "the model's layers have intermediate sizes of their own"
    assert expected == machine_for(attrs.evolve(config, layers=layers), WIDE)
