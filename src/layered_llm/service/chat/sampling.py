"""What the user chose, as the engine's sampling parameters. What is left open is sampled as the model advises.

Must not know: flags' names in help texts, servers.
"""

from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import SamplingChoices


def sampling_params(choices: SamplingChoices) -> SamplingParams:
    """Raises ParameterError."""
    return SamplingParams(
        temperature=choices.temperature,
        top_p=choices.top_p,
        top_k=choices.top_k,
        max_tokens=choices.max_tokens,
        seed=choices.seed,
    )
