"""How much is measured."""

import attrs
from benchmarks.compare_engines import LLAMA, PEERS, TRANSFORMERS


@attrs.frozen(kw_only=True)
class Plan:
    """Of one run."""

    rounds: int
    batches: tuple[int, ...] = (1, 8, 32)
    """Sequences at a time, and clients over HTTP."""
    steps: int
    """Of one decode measurement."""
    context_tokens: int = 192
    prompt_tokens: int = 512
    http_batches: tuple[int, ...] = (1, 8, 32)
    http_prompt_words: int = 32
    http_output_tokens: int
    bare_limit_s: float
    """From the start of the first engine. No round but the first is begun that is likely to end behind this: on a busy machine
    there are fewer rounds.
    """
    http_limit_s: float
    families: tuple[str, ...]

    @classmethod
    def whole(cls) -> "Plan":
        """Under 20 minutes."""
        return cls(rounds=5, steps=16, http_output_tokens=32, bare_limit_s=600, http_limit_s=450, families=PEERS)

    @classmethod
    def quick(cls) -> "Plan":
        """Under 4 minutes."""
        return cls(
            rounds=1,
            steps=8,
            context_tokens=64,
            http_batches=(1, 32),
            http_output_tokens=16,
            bare_limit_s=120,
            http_limit_s=90,
            families=(TRANSFORMERS, LLAMA),
        )
