"""The CPU device: slots, a model and a sampler, which together execute steps.

Must not know: links, policy, how the model was read, how its layers are computed, how a token is sampled.
"""

from collections.abc import Callable

import attrs

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.logprobs import PromptLogprobs
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.runtime.device.device import DeviceError, HostDevice, one_line
from layered_llm.runtime.device.host_slots import HostSlots
from layered_llm.runtime.device.step_inputs import Float32s, StepInputs
from layered_llm.runtime.device.step_model import NOTHING_SAMPLED, Sampled, Sampler, StepModel
from layered_llm.runtime.sampling.host_sampler import HostSampler


class CpuDevice(HostDevice):
    """A Device that runs a decoder and samples. Sampled tokens go into the slots' state and feed the next step from there."""

    def __init__(self, *, model: StepModel, limits: RuntimeLimits, now_us: Callable[[], int]) -> None:
        super().__init__()
        self._model = model
        self._limits = limits
        self._now_us = now_us
        self._slots = HostSlots(limits)
        self._sampler: Sampler = HostSampler(self._slots)

    @property
    def limits(self) -> RuntimeLimits:
        return self._limits

    def _execute(self, step: ExecuteStep) -> StepCompleted:
        """Raises DeviceError where the model fails, and InvariantViolated for a step that contradicts the slots' state."""
        started_us = self._now_us()
        inputs = self._slots.apply(step)
        try:
            sampled, prompt_logprobs = self._run(inputs)
        except (RuntimeError, MemoryError) as error:
            raise DeviceError(f"step {step.step} failed: {one_line(error)}") from error
        return StepCompleted(
            step=step.step,
            token_ids=sampled.token_ids.tobytes(),
            device_us=self._now_us() - started_us,
            open_slots=len(self._slots.choices),
            logprobs=sampled.logprobs,
            prompt_logprobs=prompt_logprobs,
            failed_rows=pack_i32(sorted(sampled.failed_rows)),
            failures=pack_i8([FinishReason.ERROR] * len(sampled.failed_rows)),
        )

    def _run(self, inputs: StepInputs) -> tuple[Sampled, PromptLogprobs | None]:
        if not inputs.slots.size:
            return NOTHING_SAMPLED, None
        if not self._slots.reports_prompts(inputs):
            return self._sample(self._model.sampled_logits(inputs), inputs), None
        hidden = self._model.hidden(inputs)
        prompt_logprobs, failed = self._sampler.prompt_logprobs(hidden, inputs, self._model.logits)
        sampled = NOTHING_SAMPLED
        if inputs.sampled.size:
            sampled = self._sample(self._model.logits(hidden[inputs.logit_places]), inputs)
        return attrs.evolve(sampled, failed_rows=failed | sampled.failed_rows), prompt_logprobs

    def _sample(self, logits: Float32s, inputs: StepInputs) -> Sampled:
        if not inputs.sampled.size:
            return NOTHING_SAMPLED
        sampled = self._sampler.sample(logits, inputs)
        self._slots.append_sampled(inputs, sampled.token_ids)
        return sampled
