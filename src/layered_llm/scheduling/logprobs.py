"""What the runtime tells of prompts, gathered chunk by chunk until a prompt is whole.

Must not know: what a log probability is, who is told.
"""

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.messages.logprobs import PromptLogprobs
from layered_llm.scheduling.plan import PlannedStep
from layered_llm.scheduling.sequences import Phase


def keep_prompt_logprobs(planned: PlannedStep, told: PromptLogprobs | None) -> None:
    """Adds what the rows of a step told to their choices; what comes for one that ended is dropped.

    One that was preempted meanwhile needs it if the step sampled its first token, and forgets it when it starts again.
    """
    if told is None:
        return
    if told.row_count != len(planned.rows):
        raise InvariantViolated(f"step {planned.step} has {len(planned.rows)} rows and tells of {told.row_count}")
    for sequence, columns in zip(planned.rows, told, strict=True):
        if columns is not None and sequence.phase is not Phase.ENDED:
            sequence.prompt_logprobs.append(columns)
