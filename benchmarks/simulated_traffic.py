"""Made-up traffic for the scheduler: conversations of one or several turns, the same ones for the same seed.

A turn's prompt is everything said before, the answers too, and some new tokens; so it can be asked only when the answer before
it is there, and after the reader thought for a while.
"""

from collections.abc import Iterator
from random import Random

import attrs

TRAFFICS = ("poisson", "chat")
URGENT, NORMAL = 0, 1
FIRST_PRIVATE_ID = 1_000_000
"""Token ids below it are those of system prompts."""


@attrs.frozen(kw_only=True)
class Turn:
    """One question and the length of its answer."""

    think_us: int
    """From the end of the answer before."""
    new_ids: tuple[int, ...]
    output_tokens: int


@attrs.frozen(kw_only=True)
class Conversation:
    """Requests of which each goes on from the one before."""

    start_us: int
    priority: int
    turns: tuple[Turn, ...]


@attrs.frozen(kw_only=True)
class Shape:
    """What the traffic is like."""

    requests: int
    """How many there are; of a conversation each turn is one."""
    per_s: float
    """How many come in a second, a conversation's later turns counted as if they came with the first."""
    prompt_tokens: int
    """Median of the new tokens of a turn."""
    output_tokens: int
    """Mean of an answer."""
    urgent_share: float
    turns: int = 1
    """Most turns of a conversation."""
    system_prompts: int = 0
    """How many different ones there are; 0 for conversations that begin with nothing shared."""
    system_tokens: int = 0
    think_s: float = 0.0
    """Mean."""


def conversations(shape: Shape, seed: int) -> Iterator[Conversation]:
    """Arrivals are a Poisson process; lengths of prompts are log-normal, those of answers and times to think exponential."""
    random = Random(seed)
    now_us, left, next_id = 0.0, shape.requests, FIRST_PRIVATE_ID
    while left:
        turns: list[Turn] = []
        count = min(left, random.randint(1, shape.turns))
        for number in range(count):
            own = _length(random.lognormvariate(0, 0.7) * shape.prompt_tokens, 8 * shape.prompt_tokens)
            opening = _system_ids(shape, random) if not number else ()
            turns.append(
                Turn(
                    think_us=round(1e6 * random.expovariate(1 / shape.think_s)) if number and shape.think_s else 0,
                    new_ids=(*opening, *range(next_id, next_id + own)),
                    output_tokens=_length(random.expovariate(1 / shape.output_tokens), 4 * shape.output_tokens),
                )
            )
            next_id += own
        now_us += 1e6 * random.expovariate(shape.per_s / count)
        left -= count
        priority = URGENT if random.random() < shape.urgent_share else NORMAL
        yield Conversation(start_us=round(now_us), priority=priority, turns=tuple(turns))


def _system_ids(shape: Shape, random: Random) -> tuple[int, ...]:
    """Some system prompts are asked far more often than others, as applications are."""
    if not shape.system_prompts:
        return ()
    which = min(int(random.expovariate(3.0) * shape.system_prompts), shape.system_prompts - 1)
    first = which * shape.system_tokens
    return tuple(range(first, first + shape.system_tokens))


def _length(value: float, most: int) -> int:
    return max(1, min(most, round(value)))
