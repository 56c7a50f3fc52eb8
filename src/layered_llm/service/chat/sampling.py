"""What the user chose and what the user left open, as the engine's sampling parameters.

Must not know: flags' names in help texts, servers.
"""

from typing import Final

from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import SamplingChoices

TEMPERATURE: Final = 0.7
TOP_P: Final = 0.95
"""For a chat; what the API has in their place, 1 and 1, is for those who compare distributions."""


def sampling_params(choices: SamplingChoices) -> SamplingParams:
    """Raises ParameterError."""
    return SamplingParams(
        temperature=TEMPERATURE if choices.temperature is None else choices.temperature,
        top_p=TOP_P if choices.top_p is None else choices.top_p,
        top_k=choices.top_k or 0,
        max_tokens=choices.max_tokens,
        seed=choices.seed,
    )
