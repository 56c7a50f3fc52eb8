"""What ranks read of a checkpoint, put together, is the checkpoint."""

from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import WHOLE, Shard
from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, Matrix, in_panels
from layered_llm.runtime.checkpoint.weights import CheckpointReader
from layered_llm.runtime.cpu.torch_attention import AttentionPlan, ChunkBlock, KvCache
from layered_llm.runtime.cpu.torch_decoder import expand_model
from layered_llm.runtime.cpu.torch_layers import Rotation
from layered_llm.runtime.device.device import DeviceError
from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.models.decoder_weights import DecoderWeights, LinearWeights
from layered_llm.runtime.models.model_files import read_model
from support.gguf_models import random_model, write_gguf
from support.runtime_checkpoints import make_checkpoint, reference_logits

SIZES: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3"},
}
FORMATS: list[Any] = [
    *(torch.float32, torch.bfloat16, torch.float16),
    *(Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0),
]


def write(directory: Path, stored: Any, **settings: Any) -> Path:
    if isinstance(stored, torch.dtype):
        make_checkpoint(directory, dtype=stored, **settings)
        return directory
    write_gguf(directory / "m.gguf", random_model(settings.pop("model_type", "llama"), **settings), stored)
    return directory / "m.gguf"


def read(model: Path, shard: Shard = WHOLE, **options: Any) -> DecoderWeights:
    files = read_model(model)
    reader = CheckpointReader.of(files.tensors(), **{"dtype": "auto"} | options, shard=shard)
    weights = files.family.build(files.config, reader)
    reader.finish()
    return weights


def unmerged(linear: LinearWeights, sizes: list[int]) -> list[Float32s]:
    """The matrices that were merged, each with its bias as another column."""
    matrix = linear.matrix.dequantized()
    bias = np.zeros(len(matrix), np.float32) if linear.bias is None else linear.bias
    return np.split(np.column_stack([matrix, bias]), np.cumsum(sizes)[:-1])


def joined(shards: list[DecoderWeights]) -> dict[str, Float32s]:
    """All numbers by what they are, the ranks' parts put together."""

    def rows(parts: list[Matrix]) -> Float32s:
        return np.concatenate([part.dequantized() for part in parts])

    def columns(parts: list[LinearWeights]) -> Float32s:
        assert [part.bias for part in parts[1:]] == [None] * (len(parts) - 1)
        bias = [] if parts[0].bias is None else [parts[0].bias]
        return np.column_stack([*(part.matrix.dequantized() for part in parts), *bias])

    def merged(parts: list[LinearWeights], sizes: list[int]) -> Float32s:
        split = [unmerged(part, sizes) for part in parts]
        return np.concatenate([np.concatenate(block) for block in zip(*split, strict=True)])

    config = shards[0].config
    qkv, gate_up = [config.query_size, config.kv_size, config.kv_size], [config.intermediate_size] * 2
    found = {"embedding": rows([each.embedding for each in shards]), "head": rows([each.head for each in shards])}
    for number in range(config.layer_count):
        layers = [each.layers[number] for each in shards]
        found[f"{number} qkv"] = merged([each.attention.qkv for each in layers], qkv)
        found[f"{number} output"] = columns([each.attention.output for each in layers])
        found[f"{number} gate and up"] = merged([each.mlp.gate_up for each in layers], gate_up)
        found[f"{number} down"] = columns([each.mlp.down for each in layers])
    return found


def assert_shards_are_the_whole(model: Path, size: int, **options: Any) -> None:
    whole, shards = read(model, **options), [read(model, Shard(rank, size), **options) for rank in range(size)]
    expected, found = joined([whole]), joined(shards)
    assert {name: each.tobytes() for name, each in expected.items()} == {name: each.tobytes() for name, each in found.items()}
    assert [matrix.format for matrix in whole.matrices()] * size == [
        matrix.format for shard in shards for matrix in shard.matrices()
    ]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("stored", FORMATS, ids=str)
def test_shards_of_every_format_are_the_whole(stored: Any, size: int, tmp_path: Path) -> None:
    assert_shards_are_the_whole(write(tmp_path, stored, **SIZES), size)


@pytest.mark.parametrize("stored", [torch.float32, Type.Q4_1], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_shards_of_every_family_are_the_whole(family: str, stored: Any, tmp_path: Path) -> None:
    assert_shards_are_the_whole(write(tmp_path, stored, **SIZES | FAMILIES[family]), 2)


@pytest.mark.parametrize("stored", [torch.bfloat16, Type.Q8_0], ids=str)
def test_shards_are_converted_and_arranged_as_the_whole_is(stored: Any, tmp_path: Path) -> None:
    arrange = partial(in_panels, layout=FLOAT_PANELS, room=lambda count: np.empty(count, np.uint8))
    assert_shards_are_the_whole(write(tmp_path, stored, **SIZES), 2, dtype="int8", arrange=arrange)


@pytest.mark.parametrize("stored", [torch.bfloat16, Type.Q4_0], ids=str)
def test_what_ranks_compute_of_split_inputs_adds_up_to_the_whole(stored: Any, tmp_path: Path) -> None:
    model, rng = write(tmp_path, stored, **SIZES | FAMILIES["llama"]), np.random.default_rng(0)
    whole, shards = read(model).layers[0], [read(model, Shard(rank, 4)).layers[0] for rank in range(4)]
    x = rng.normal(size=(3, SIZES["intermediate_size"])).astype(np.float32)

    def product(inputs: Float32s, linear: LinearWeights) -> Float32s:
        result: Float32s = inputs @ linear.matrix.dequantized().T
        return result if linear.bias is None else result + linear.bias

    parts = [product(inputs, shard.mlp.down) for inputs, shard in zip(np.split(x, 4, axis=1), shards, strict=True)]
    np.testing.assert_allclose(sum(parts), product(x, whole.mlp.down), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_that_add_up_what_they_compute_are_the_model(family: str, tmp_path: Path) -> None:
    model, tokens = make_checkpoint(tmp_path, **SIZES | FAMILIES[family]), [5, 9, 100, 3, 77, 64, 1, 120]
    shards = [read(tmp_path, Shard(rank, 2)) for rank in range(2)]
    ranks = [expand_model(shard) for shard in shards]
    caches = [KvCache.allocate(shard.config, pages=1, page_size_tokens=len(tokens)) for shard in shards]
    places, mask = torch.arange(len(tokens)), torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)
    block = ChunkBlock(first=0, last=len(tokens), pages=torch.tensor([0]), mask=mask)
    plan = AttentionPlan(positions=places, cells=places, decodes=(), chunks=(block,))
    rotation = Rotation.at(places, ranks[0].rotations)
    x = torch.cat([rank.embedding for rank in ranks])[tokens]
    for layers in zip(*(rank.layers for rank in ranks), strict=True):
        both = [
            each.attention(each.attention_norm(x), rotation, cache, plan) for each, cache in zip(layers, caches, strict=True)
        ]
        x = x + both[0] + both[1]
        both = [each.mlp(each.mlp_norm(x)) for each in layers]
        x = x + both[0] + both[1]
    logits = torch.cat([rank.logits(x) for rank in ranks], dim=1)
    assert 1e-4 > (reference_logits(model, tokens) - logits).abs().max().item()


def test_a_rank_has_its_own_heads_vocabulary_and_inner_sizes(tmp_path: Path) -> None:
    config = read(write(tmp_path, torch.float32, **SIZES), Shard(1, 4)).config
    assert (2, 1, 32, 32) == (config.heads, config.kv_heads, config.intermediate_size, config.vocabulary_size)


def test_rows_of_a_rank_are_a_view_of_the_file(tmp_path: Path) -> None:
    model = write(tmp_path, Type.Q8_0, **SIZES)
    data = read(model, Shard(1, 2)).embedding.data
    assert (False, False) == (data.flags.owndata, data.flags.writeable)


def test_columns_of_a_rank_are_forgotten_in_the_file(tmp_path: Path) -> None:
    files, forgotten = read_model(write(tmp_path, Type.Q8_0, **SIZES)), []
    name = "model.layers.0.mlp.down_proj.weight"
    stored = attrs.evolve(files.tensors()[name], forget=lambda: forgotten.append(name))
    reader = CheckpointReader.of(dict(files.tensors()) | {name: stored}, dtype="auto", shard=Shard(0, 2))
    files.family.build(files.config, reader)
    assert [name] == forgotten


@pytest.mark.parametrize(
    ("stored", "settings", "size", "message"),
    [
        (torch.float32, {}, 3, "num_attention_heads=8 cannot be split evenly over 3 ranks"),
        (torch.float32, {}, 8, "num_key_value_heads=4 cannot be split evenly over 8 ranks"),
        (torch.float32, {"vocab_size": 127}, 2, "vocab_size=127 cannot be split evenly over 2 ranks"),
        (torch.float32, {"intermediate_size": 130}, 4, "intermediate_size=130 cannot be split evenly over 4 ranks"),
        (
            Type.Q8_0,
            {"intermediate_size": 96},
            2,
            r"down_proj\.weight has rows of 96 numbers as Q8_0, and 2 ranks would split its blocks of 32",
        ),
    ],
    ids=str,
)
def test_what_has_no_equal_parts_is_refused(
    stored: Any, settings: dict[str, Any], size: int, message: str, tmp_path: Path
) -> None:
    model = write(tmp_path, stored, **SIZES | settings)
    with pytest.raises(DeviceError, match=message):
        read(model, Shard(0, size))


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_there_is_no_such_rank(rank: int, size: int) -> None:
    with pytest.raises(InvariantViolated, match=f"rank {rank} of {size}"):
        Shard(rank, size)
