import random
from collections import Counter

import numpy as np
import pytest

from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.host_slots import SeenTokens, seen_tokens
from support.runtime_driver import greedy, sampling

PROMPT, OUTPUT = np.array([7, 5, 7], np.int32), np.array([5, 9], np.int32)


def counted(seen: SeenTokens) -> dict[int, int]:
    return dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True))


def test_the_output_is_counted_and_the_prompt_only_noted() -> None:
    assert {7: 0, 5: 1, 9: 1} == counted(SeenTokens(PROMPT, OUTPUT))


def test_a_token_added_counts_as_one_that_was_there_from_the_start() -> None:
    rng = random.Random(1)
    output = [rng.randrange(50) for _ in range(300)]
    seen = SeenTokens([1, 2, 60], ())
    for token in output:
        seen.add(token)
    assert counted(SeenTokens([1, 2, 60], output)) == counted(seen)
    assert Counter(output) == Counter(counted(seen))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (greedy(), None),
        (sampling(min_p=0.1, biases={3: 1.0}), None),
        (sampling(repetition_penalty=1.1), {7: 0, 5: 1, 9: 1}),
        (sampling(presence_penalty=-0.1), {5: 1, 9: 1}),
        (sampling(frequency_penalty=0.1), {5: 1, 9: 1}),
    ],
)
def test_only_what_a_penalty_needs_is_counted(params: TokenSampling, expected: dict[int, int] | None) -> None:
    seen = seen_tokens(params, PROMPT, OUTPUT)
    assert expected == (None if seen is None else counted(seen))
