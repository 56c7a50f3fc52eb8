import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from layered_llm.service.model.settings_checks import check_before_start
from layered_llm.service.settings.settings import Settings, SettingsError
from support.byte_checkpoint import write_byte_checkpoint

CONTEXT_TOKENS = 128


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=CONTEXT_TOKENS)
    whole = json.loads((directory / "config.json").read_text())
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    family = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    (directory / "config.json").write_text(json.dumps({**whole, **sizes, **family}))
    return str(directory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"certfile": "a.pem"}, "--certfile and --keyfile belong together: give both, or neither"),
        ({"keyfile": "a.pem"}, "--certfile and --keyfile belong together: give both, or neither"),
        ({"max_streams_per_key": 2}, "--max-streams-per-key needs --api-key or --api-key-file; "),
        ({"kernels": "torch", "deterministic": True}, "--deterministic needs the generated kernels, and --kernels torch"),
        ({"kernels": "torch", "kv_dtype": "float16"}, "--kv-dtype float16 needs the generated kernels, and --kernels torch"),
        ({"trace_file": "/nowhere/trace.json"}, "--trace-file /nowhere/trace.json: there is no directory /nowhere"),
        ({"trace_file": "/"}, "--trace-file /: this is a directory"),
        ({"chat_template": "/nowhere.jinja"}, "--chat-template /nowhere.jinja: there is no such file"),
        ({"chat_template": "n" * 300}, f"--chat-template {'n' * 300}: there is no such file"),
        ({"trace_file": f"{'n' * 300}/trace.json"}, f"--trace-file {'n' * 300}/trace.json: there is no directory "),
        ({"max_seq_len_override": 129}, "--max-seq-len-override (--max-model-len) must be at most the model's 128 tokens"),
        ({"num_pages": 10**12}, "--num-pages must be at most "),
        ({"model": "/nowhere"}, "--model /nowhere: there is no such file or directory"),
    ],
    ids=str,
)
def test_what_cannot_be_right_is_refused_by_its_flag(settings: dict[str, object], message: str, model: str) -> None:
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        check_before_start(Settings(**{"model": model, **settings}))  # type: ignore[arg-type]  # checked by the class


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path)], ids=["pipe", "loop"])
def test_a_trace_goes_into_no_pipe(make: Callable[[Path], None], model: str, tmp_path: Path) -> None:
    make(tmp_path / "trace")

    with pytest.raises(SettingsError, match="this is no regular file"):
        check_before_start(Settings(model=model, trace_file=str(tmp_path / "trace")))


@pytest.mark.parametrize("device", ["cpu", "scripted"])
def test_what_can_be_right_is_not_refused(device: str, model: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"

    check_before_start(
        Settings(model=model, device=device, max_seq_len_override=CONTEXT_TOKENS, num_pages=1, trace_file=str(trace))
    )

    assert not trace.exists()


def test_a_hub_id_is_not_asked_for() -> None:
    check_before_start(Settings(model="nobody/has-this-model"))


def test_a_model_that_cannot_be_read_is_left_to_the_runtime(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")

    check_before_start(Settings(model=str(tmp_path), num_pages=10**12))
