import logging
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, byte_panels, in_panels
from layered_llm.runtime.checkpoint.weights import CheckpointReader
from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.cpu.simd.tasks import ModelTables
from layered_llm.runtime.device.device import DeviceError
from layered_llm.runtime.device.step_inputs import Float32s, StepInputs
from layered_llm.runtime.models.model_files import read_model
from support.logits import Recorder, answer, record, replace_model
from support.runtime_checkpoints import make_checkpoint, reference_logits
from support.runtime_driver import Driver, generate, open_slot
from support.runtime_options import make_options

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-bf16": {"dtype": torch.bfloat16, "head_dim": 32},
    "llama-fp16": {"dtype": torch.float16, "head_dim": 32},
    "llama-wide": {"intermediate_size": 4128, "hidden_size": 48, "head_dim": 32},
    "llama-odd": {"hidden_size": 40, "intermediate_size": 104, "head_dim": 24, "vocab_size": 131},
    "qwen2-groups-of-7": {"model_type": "qwen2", "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 32},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}
"""Random weights of deviation 0.3 make logits of some tens."""

DTYPES = ["auto", "int8"]
"""Of a checkpoint of fp32: what multiplies it depends on them."""


def open_cpu(directory: Path, **changes: Any) -> CpuDevice:
    return open_cpu_device(make_options(directory, **changes), now_us=lambda: 0)


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(3, 128) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp(request.param)
    return directory, make_checkpoint(directory, **VARIANTS[request.param])


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    make_checkpoint(directory, head_dim=32)
    return directory


@pytest.mark.parametrize("kernels", ["simd", "torch"])
def test_both_paths_compute_what_transformers_computes(kernels: str, checkpoint: tuple[Path, Any]) -> None:
    directory, model = checkpoint
    (prompt,) = prompts_of(29)
    output, logits = answer(open_cpu(directory, kernels=kernels), prompt, 8)
    expected = reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :]
    assert 1e-4 > (logits - expected).abs().max().item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_changes_no_bit(threads: int, dtype: str, llama: Path) -> None:
    (prompt,) = prompts_of(40)
    _, expected = answer(open_cpu(llama, threads=2, dtype=dtype), prompt, 8)
    _, logits = answer(open_cpu(llama, threads=threads, dtype=dtype), prompt, 8)
    assert torch.equal(expected, logits)


def logits_beside(
    directory: Path, prompt: list[int], others: list[list[int]], *, chunk_tokens: int, dtype: str
) -> torch.Tensor:
    """Those of `prompt`'s answer, computed in the same steps as `others`."""
    device = open_cpu(directory, num_pages=1024, max_slots=64, deterministic=True, dtype=dtype)
    recorder = record(device)
    driver = Driver(device, chunk_tokens, stride=7)
    for slot, each in enumerate([prompt, *others]):
        driver.add(open_slot(slot, each), output_tokens=9)
    driver.run()
    rows = [logits[0] for logits in recorder.logits_seen]
    return torch.stack(rows[:9])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk_tokens", [1000, 16, 5])
def test_logits_are_the_same_bits_alone_and_among_31_others(chunk_tokens: int, dtype: str, llama: Path) -> None:
    prompt, *others = prompts_of(16, *range(16, 16 + 31))
    alone = logits_beside(llama, prompt, [], chunk_tokens=1000, dtype=dtype)
    beside = logits_beside(llama, prompt, others, chunk_tokens=chunk_tokens, dtype=dtype)
    assert torch.equal(alone, beside[: len(alone)])


class InTurns(Recorder):
    """Asks for layers and head apart in every other step."""

    def sampled_logits(self, *arguments: Any) -> Float32s:
        if len(self.logits_seen) % 2 == 0:
            return super().sampled_logits(*arguments)
        inputs: StepInputs = arguments[0]
        return self.logits(self.hidden(inputs)[inputs.logit_places])


def test_layers_and_head_may_be_asked_apart_in_a_run_of_decodes(llama: Path) -> None:
    (prompt,) = prompts_of(9)
    device = open_cpu(llama)
    output, logits = answer(device, prompt, 24)
    in_turns = InTurns(device._model)
    replace_model(device, in_turns)
    (again,) = generate(device, [prompt], output_tokens=24)
    assert (output, True) == (again, torch.equal(logits, torch.cat(in_turns.logits_seen)))


def test_a_cache_of_fp16_is_close(llama: Path) -> None:
    (prompt,) = prompts_of(60)
    output, expected = answer(open_cpu(llama), prompt, 8)
    again, logits = answer(open_cpu(llama, kv_dtype="float16"), prompt, 8)
    assert output == again
    assert 0 < (expected - logits).abs().max().item() < 0.1


def test_a_cache_of_fp16_has_twice_the_pages(llama: Path) -> None:
    sizes = [open_cpu(llama, num_pages=None, kv_dtype=dtype).limits for dtype in ("float32", "float16")]
    assert sizes[0] == sizes[1]


def test_heads_that_are_no_multiple_of_8_are_left_to_torch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_checkpoint(tmp_path, head_dim=20)
    with caplog.at_level(logging.INFO):
        open_cpu(tmp_path)
    assert any("head_dim of 20 is no multiple of 8" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("wish", "named"),
    [({"kernels": "simd"}, "kernels=simd"), ({"kv_dtype": "float16"}, "kv_dtype"), ({"deterministic": True}, "deterministic")],
)
def test_what_only_the_kernels_do_is_refused_without_them(wish: dict[str, Any], named: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, head_dim=20)
    with pytest.raises(DeviceError, match=rf"{named}.* needs the generated kernels.*head_dim of 20"):
        open_cpu(tmp_path, **wish)


def test_matrices_in_panels_of_another_machine_are_refused(llama: Path) -> None:
    files = read_model(llama)
    arrange = partial(in_panels, layout=byte_panels(16), room=lambda count: np.empty(count, np.uint8))
    reader = CheckpointReader.of(files.tensors(), dtype="int8", arrange=arrange)
    weights = files.family.build(files.config, reader)
    ModelTables.of(weights, byte_panels(16))
    with pytest.raises(InvariantViolated, match="does not lie in the panels"):
        ModelTables.of(weights, FLOAT_PANELS)
