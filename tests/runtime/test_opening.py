import json
from pathlib import Path
from typing import Any

import pytest

from layered_llm.domain.limits import RuntimeLimits
from layered_llm.runtime.device.device import Device, DeviceError
from layered_llm.runtime.opening import open_device
from support.runtime_driver import generate
from support.runtime_options import make_options, make_script_options


def open_scripted(model_dir: Path, **changes: Any) -> Device:
    return open_device(make_options(model_dir, device="scripted", **changes), now_us=lambda: 0)


def test_a_scripted_device_takes_its_limits_from_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300, "max_position_embeddings": 40}))
    expected = RuntimeLimits(pages=40, page_size_tokens=4, slots=8, context_tokens=40, vocabulary_size=300)
    assert expected == open_scripted(tmp_path, num_pages=None).limits


def test_a_scripted_device_needs_no_config_json(tmp_path: Path) -> None:
    limits = open_scripted(tmp_path).limits
    assert (64, 256, 1 << 16) == (limits.pages, limits.context_tokens, limits.vocabulary_size)


def test_the_context_can_be_shortened(tmp_path: Path) -> None:
    assert 20 == open_scripted(tmp_path, context_override=20).limits.context_tokens


def test_the_named_script_runs(tmp_path: Path) -> None:
    device = open_scripted(tmp_path, script=make_script_options(name="echo"))
    assert [[7, 9, 7]] == generate(device, [[7, 9]], output_tokens=3)


def test_the_hash_scripts_ids_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100}))
    with pytest.raises(DeviceError, match="ids 97 … 122 are not in the vocabulary"):
        open_scripted(tmp_path)


def test_steps_take_time_through_the_waiting_function(tmp_path: Path) -> None:
    waits: list[float] = []
    options = make_options(tmp_path, device="scripted", script=make_script_options(step_us=500, token_us=100))
    generate(open_device(options, now_us=lambda: 0, wait=waits.append), [[1, 2, 3]], output_tokens=2)
    assert [0.0008, 0.0006] == waits


def test_a_cpu_device_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"config\.json does not exist"):
        open_device(make_options(tmp_path), now_us=lambda: 0)


def test_an_unsupported_architecture_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    raw = {
        "architectures": ["GPT2LMHeadModel"],
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "vocab_size": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(DeviceError, match=r"'GPT2LMHeadModel' is not supported, only LlamaForCausalLM, .*Qwen3"):
        open_device(make_options(tmp_path), now_us=lambda: 0)
