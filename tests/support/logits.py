"""The logits behind the tokens that a CPU device samples."""

from collections.abc import Sequence
from typing import Any

import torch

from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.device.step_model import StepModel
from support.runtime_driver import generate


class Recorder:
    """Keeps the logits that a device computes."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self.logits_seen: list[torch.Tensor] = []

    def hidden(self, *arguments: Any) -> Float32s:
        return self._model.hidden(*arguments)

    def logits(self, hidden: Float32s) -> Float32s:
        logits = self._model.logits(hidden)
        self.logits_seen.append(torch.from_numpy(logits.copy()))
        return logits

    def sampled_logits(self, *arguments: Any) -> Float32s:
        logits = self._model.sampled_logits(*arguments)
        if len(logits):
            self.logits_seen.append(torch.from_numpy(logits).clone())
        return logits


def replace_model(device: Any, model: Recorder) -> None:
    device._model = model


def record(device: CpuDevice) -> Recorder:
    recorder = Recorder(device._model)
    replace_model(device, recorder)
    return recorder


def answer(device: CpuDevice, prompt: Sequence[int], output_tokens: int) -> tuple[list[int], torch.Tensor]:
    """A greedy answer, and the logits [output_tokens, vocabulary] of its tokens."""
    recorder = record(device)
    (output,) = generate(device, [list(prompt)], output_tokens=output_tokens)
    return output, torch.cat(recorder.logits_seen)
