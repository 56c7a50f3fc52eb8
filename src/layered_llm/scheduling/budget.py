"""How the token budget of one step is divided.

Must not know: choices, pages, slots; it sees token counts alone.

Decodes come first, so that the gap between two tokens of a running stream is bounded, and prompts are cut into chunks that fill
the rest: chunked prefill with stall-free batching, Sarathi-Serve (Agrawal et al., arXiv:2403.02310).
"""

from collections.abc import Sequence


def decode_limit(max_step_tokens: int, *, is_prefilling: bool) -> int:
    """Most decode rows of a step.

    Where a prompt is under way, a quarter of the budget is kept from the decodes, so that a crowd of them slows new requests
    down but cannot shut them out. A budget of one token goes to decodes: they end by themselves.
    """
    kept = min(-(-max_step_tokens // 4), max_step_tokens - 1) if is_prefilling else 0
    return max_step_tokens - kept


def share_chunks(remaining_tokens: Sequence[int], budget_tokens: int) -> list[int]:
    """Tokens for each prompt under way, given what is left of each, the oldest first.

    Half of the budget is the oldest prompt's; the rest goes to the prompt that is shortest to its end, then to the next one.
    So a short prompt passes a long one, the mean time to a first token is near the least that is possible (shortest remaining
    processing time first), and no prompt starves: each becomes the oldest one and then moves with every step. Equal shares
    would be worse, since prompts of one length would all finish last.
    """
    shares = [0] * len(remaining_tokens)
    if not shares:
        return shares
    shares[0] = min(remaining_tokens[0], -(-budget_tokens // 2))
    left = budget_tokens - shares[0]
    for index in sorted(range(len(shares)), key=remaining_tokens.__getitem__):
        more = min(remaining_tokens[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares
