"""The log probabilities of a TextEmitted, row by row, as they are packed there.

Must not know: requests, who reads them.
"""

from itertools import accumulate

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.messages.api_text import TextEmitted
from layered_llm.domain.messages.logprobs import LogprobColumns
from layered_llm.domain.stream import LogprobRun, SampledLogprob


class DeltaLogprobs:
    """Those of one message; nothing is built for a row that nobody asks for."""

    def __init__(self, message: TextEmitted) -> None:
        told, prompts = message.logprobs, message.prompt_logprobs
        names, offsets = message.prompt_logprob_tokens, message.prompt_text_offsets
        self._sampled = None if told is None else _Columns(told, message.logprob_tokens, message.text_offsets)
        self._prompt = None if prompts is None else _Columns(prompts.columns, names, offsets)
        self._prompt_ends = () if prompts is None else tuple(accumulate(unpack_i32(prompts.token_counts), initial=0))

    def sampled(self, first: int, behind: int) -> "LogprobRun | tuple[SampledLogprob, ...]":
        """Of the message's tokens from `first` on, but for those whose request wants none."""
        return () if self._sampled is None else self._sampled.run(first, behind)

    def prompt(self, row: int) -> "LogprobRun | tuple[SampledLogprob, ...]":
        """Of the prompt's tokens that come with a row."""
        return () if self._prompt is None else self._prompt.run(self._prompt_ends[row], self._prompt_ends[row + 1])


class _Columns:
    def __init__(self, columns: LogprobColumns, names: tuple[bytes, ...], offsets: bytes) -> None:
        self._columns = columns
        self._names = names
        self._counts = unpack_i32(columns.counts)
        self._starts = tuple(accumulate(self._counts, initial=0))
        self._ranks = unpack_i32(columns.ranks)
        self._offsets = unpack_i32(offsets)

    def run(self, first: int, behind: int) -> "LogprobRun | tuple[SampledLogprob, ...]":
        start, end = self._starts[first], self._starts[behind]
        if start == end:
            return ()
        told = [place for place in range(first, behind) if self._counts[place]]
        return LogprobRun(
            [self._counts[place] for place in told],
            self._columns.token_ids[4 * start : 4 * end],
            self._columns.logprobs[4 * start : 4 * end],
            self._names[start:end],
            ranks=[self._ranks[place] if self._ranks else 0 for place in told],
            offsets=[self._offsets[place] for place in told],
        )
