"""What the opener of a request sees of it: deltas of its choices, then one end.

Must not know: links, HTTP.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Final, Protocol, overload

import attrs

from layered_llm.domain.columns import unpack_f32, unpack_i32
from layered_llm.domain.finish import FinishReason

_TOKEN_BYTES: Final = 40
LOGPROB_BYTES: Final = 64
"""Of what waits to be fetched: a number, and 8 packed bytes beside the token's name."""


@attrs.frozen(kw_only=True)
class Usage:
    """True token counts of a whole request."""

    prompt_tokens: int
    completion_tokens: int
    """Sampled tokens of all choices, eos included; a stop string cuts after the token that completed it."""
    cached_tokens: int


@attrs.frozen(kw_only=True)
class TokenLogprob:
    """A token with the logarithm of the probability that the model itself gave it."""

    token_id: int
    token: bytes
    """What it stands for: a part of a UTF-8 character, where the vocabulary has tokens for those."""
    logprob: float
    """At most 0, and minus infinity for what the model excludes."""


@attrs.frozen(kw_only=True)
class SampledLogprob(TokenLogprob):
    """The same of a token that came, sampled or given, and of those that were the likeliest in its place."""

    top: tuple[TokenLogprob, ...]
    """The likeliest first; the sampled token may be among them."""
    text_offset: int = 0
    """Characters of the choice's text before this token's; of a prompt's tokens where the text begins with the prompt."""
    rank: int | None = None
    """How many tokens of the vocabulary are at least as likely, itself included. Told of a prompt's tokens but the first."""


class LogprobRun(Sequence[SampledLogprob]):
    """Those of tokens in a row, packed until they are read.

    As objects they take five times the memory, and with millions of them each garbage collection takes seconds. Nobody changes
    one once it is made. It is no attrs class, since its constructor is given counts and keeps where each token's entries start.
    """

    __slots__ = ("entry_ids", "entry_logprobs", "names", "offsets", "ranks", "starts")

    def __init__(
        self,
        counts: Sequence[int],
        entry_ids: bytes,
        entry_logprobs: bytes,
        names: tuple[bytes, ...],
        *,
        ranks: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        """`counts` entries of each token, its own first, with packed ids and logarithms. A rank is 0 where nobody asked."""
        self.starts = array("i", accumulate(counts, initial=0))
        self.entry_ids = entry_ids
        self.entry_logprobs = entry_logprobs
        self.names = names
        self.ranks = ranks
        self.offsets = offsets

    @classmethod
    def joined(cls, runs: Sequence["LogprobRun"]) -> "LogprobRun":
        """The tokens of all `runs`, each looked at once."""
        return cls(
            [count for run in runs for count in run.counts],
            b"".join(run.entry_ids for run in runs),
            b"".join(run.entry_logprobs for run in runs),
            tuple(chain.from_iterable(run.names for run in runs)),
            ranks=array("i", chain.from_iterable(run.ranks for run in runs)),
            offsets=array("i", chain.from_iterable(run.offsets for run in runs)),
        )

    @property
    def entry_count(self) -> int:
        """Log probabilities, those of the likeliest tokens counted."""
        return len(self.names)

    @property
    def counts(self) -> Iterator[int]:
        """Entries of each token."""
        return (end - start for start, end in zip(self.starts, self.starts[1:], strict=False))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, place: int) -> SampledLogprob: ...

    @overload
    def __getitem__(self, place: slice) -> "LogprobRun": ...

    def __getitem__(self, place: int | slice) -> "SampledLogprob | LogprobRun":
        if isinstance(place, int):
            place = range(len(self))[place]
            return next(iter(self[place : place + 1]))
        first, end, step = place.indices(len(self))
        if step != 1:
            raise ValueError("a run is divided into runs")
        end = max(first, end)
        entry, end_entry = self.starts[first], self.starts[end]
        counts = [self.starts[index + 1] - self.starts[index] for index in range(first, end)]
        return LogprobRun(
            counts,
            self.entry_ids[4 * entry : 4 * end_entry],
            self.entry_logprobs[4 * entry : 4 * end_entry],
            self.names[entry:end_entry],
            ranks=self.ranks[first:end],
            offsets=self.offsets[first:end],
        )

    def __iter__(self) -> Iterator[SampledLogprob]:
        entries = zip(unpack_i32(self.entry_ids), self.names, unpack_f32(self.entry_logprobs), strict=True)
        for count, rank, offset in zip(self.counts, self.ranks, self.offsets, strict=True):
            token_id, token, logprob = next(entries)
            top = tuple(
                TokenLogprob(token_id=other, token=name, logprob=likely)
                for _, (other, name, likely) in zip(range(count - 1), entries, strict=False)
            )
            yield SampledLogprob(
                token_id=token_id, token=token, logprob=logprob, top=top, text_offset=offset, rank=rank or None
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # equal to tuples, which hash by their items

    def __repr__(self) -> str:
        return f"LogprobRun({tuple(self)!r})"


def logprob_entries(logprobs: Sequence[SampledLogprob]) -> int:
    """How many log probabilities these are, those of the likeliest tokens counted."""
    if not logprobs:
        return 0
    return logprobs.entry_count if isinstance(logprobs, LogprobRun) else sum(1 + len(one.top) for one in logprobs)


class Backlog(Protocol):
    """Room for what came for a stream and was not fetched yet."""

    def take(self, count: int) -> object | None:
        """Books `count` bytes; anything but None says that they do not fit, and books none."""

    def give_back(self, count: int) -> None:
        """`count` bytes that were booked are not needed any more."""


@attrs.frozen(kw_only=True)
class ChoiceDelta:
    """Everything that came for one choice since its last delta."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    """RUNNING while the choice goes on; anything else in exactly one delta of the choice, its last."""
    matched_stop: str | int | None
    logprobs: Sequence[SampledLogprob] = ()
    """One for each of `token_ids` where the request asked for them, else none."""
    prompt_logprobs: Sequence[SampledLogprob] = ()
    """One for each token of the prompt, in the first delta, where the request asked for them; the first one's is 0."""


@attrs.frozen(kw_only=True)
class RequestEnded:
    """The one terminal event of an accepted request."""

    usage: Usage
    error: str | None
    """None when each choice ended by itself; else one sentence on what failed in the engine."""


StreamEvent = ChoiceDelta | RequestEnded


def size_bytes_of(delta: ChoiceDelta) -> int:
    """About what it takes to keep `delta` until it is fetched."""
    logprobs = logprob_entries(delta.logprobs) + logprob_entries(delta.prompt_logprobs)
    return 4 * len(delta.text) + _TOKEN_BYTES * len(delta.token_ids) + LOGPROB_BYTES * logprobs


def merged(deltas: Sequence[ChoiceDelta]) -> ChoiceDelta:
    """One delta of a choice for several that came in this order."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    return ChoiceDelta(
        choice=last.choice,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        finish_reason=last.finish_reason,
        matched_stop=last.matched_stop,
        logprobs=_joined([delta.logprobs for delta in deltas if delta.logprobs]),
        prompt_logprobs=_joined([delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs]),
    )


def _joined(parts: Sequence[Sequence[SampledLogprob]]) -> Sequence[SampledLogprob]:
    runs = [part for part in parts if isinstance(part, LogprobRun)]
    if len(parts) <= 1:
        return parts[0] if parts else ()
    return LogprobRun.joined(runs) if len(runs) == len(parts) else tuple(chain.from_iterable(parts))
