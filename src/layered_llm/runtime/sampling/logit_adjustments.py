"""What a request changes in the model's logits: biases, penalties, and masks: of tokens that are not allowed, of end ids before
the minimum length, of tokens that would complete a bad word.

Must not know: how a token is drawn, slots.

The repetition penalty is Keskar et al., CTRL, 2019, over prompt and output; presence and frequency penalties are OpenAI's,
over the output alone. All rows with penalties share a handful of operations over the tokens that they have seen; a row
without any costs nothing. Masks come last, so that nothing lifts a masked token.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.device.host_slots import SampleRow, SeenTokens
from layered_llm.runtime.device.step_inputs import Float32s, Int64s

_LARGEST: Final = float(np.finfo(np.float32).max)


def adjust_logits(logits: Float32s, rows: Sequence[SampleRow]) -> None:
    """Changes `logits` (fp32 [rows, vocabulary]) in place.

    What was finite stays so, but for masked tokens. What was NaN or +inf stays so too, since the row failed, unless no token
    has the id, the request does not allow it, or it would complete a bad word: what cannot be sampled then fails nothing.
    """
    for index, row in enumerate(rows):
        if row.sampling.biased_ids:
            ids = np.frombuffer(row.sampling.biased_ids, np.int32)
            np.add.at(logits[index], ids, np.frombuffer(row.sampling.biases, np.float32))
    penalized = [(index, row.sampling, row.seen) for index, row in enumerate(rows) if row.seen is not None]
    if penalized:
        _penalize(logits, penalized)
    for index, row in enumerate(rows):
        if row.sampling.allowed_ids:
            _keep_only(logits[index], row.sampling.allowed_ids)
        if row.output_position < row.sampling.min_tokens:
            ids_to_mask = [token for token in row.sampling.end_ids if token < logits.shape[1]]
            is_number = logits[index, ids_to_mask] < np.inf
            logits[index, ids_to_mask] = np.where(is_number, -np.inf, logits[index, ids_to_mask])
    mask_missing(logits, (row.missing for row in rows))
    for index, row in enumerate(rows):
        if row.sampling.bad_words:
            _mask_bad_words(logits[index], row)


def mask_missing(logits: Float32s, missing: Iterable[Int64s | None]) -> None:
    """Takes the ids that no token has out of each row of `logits` [rows, vocabulary], in place."""
    for index, ids in enumerate(missing):
        if ids is not None:
            logits[index, ids] = -np.inf


def _keep_only(logits: Float32s, allowed_ids: bytes) -> None:
    ids = np.frombuffer(allowed_ids, np.int32)
    kept = logits[ids]
    logits.fill(-np.inf)
    logits[ids] = kept


def _mask_bad_words(logits: Float32s, row: SampleRow) -> None:
    """As vLLM has it; where no token would be left, a word is sampled all the same, since the choice has to go on."""
    words = [unpack_i32(word).tolist() for word in row.sampling.bad_words]
    banned = [word[-1] for word in words if row.recent[len(row.recent) - len(word) + 1 :] == tuple(word[:-1])]
    if not banned:
        return
    before = logits[banned]
    logits[banned] = -np.inf
    if not np.isfinite(logits.max()):
        logits[banned] = before


def _penalize(logits: Float32s, rows: Sequence[tuple[int, TokenSampling, SeenTokens]]) -> None:
    """In fp64, since a penalty may be any number above 0, and the quotient too large for fp32."""
    sizes = [seen.ids.size for _, _, seen in rows]

    def per_token(value_of: Callable[[TokenSampling], float]) -> NDArray[np.float64]:
        return np.repeat([value_of(sampling) for _, sampling, _ in rows], sizes)

    cells = np.concatenate([index * logits.shape[1] + seen.ids for index, _, seen in rows])
    counts = np.concatenate([seen.counts for _, _, seen in rows])
    repetition = per_token(lambda sampling: sampling.repetition_penalty)
    flat = logits.reshape(-1)  # a view; one index costs less than a pair of indices
    raw = flat[cells].astype(np.float64)
    with np.errstate(over="ignore"):
        scores = np.where(raw > 0, raw / repetition, raw * repetition)
    scores -= per_token(lambda sampling: sampling.frequency_penalty) * counts
    scores -= per_token(lambda sampling: sampling.presence_penalty) * (counts > 0)
    flat[cells] = np.where(np.isfinite(raw), scores.clip(-_LARGEST, _LARGEST), raw)
