"""The answer of `/generate` as it grows, in SGLang's words.

Must not know: HTTP, trio, where events come from.

Invariants: a choice's index is prompt * n + choice. An event has all of its choice that there is so far, as SGLang has it, so
that the last one is the whole; a choice's finish reason is told with the counts of its prompt, which are known when all choices
of the prompt have ended. After a failure nothing but the error follows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.stream import ChoiceDelta, RequestEnded, Usage
from layered_llm.transport.http.exchange import sse
from layered_llm.transport.http.generation.answer import MOST_LOGPROBS_AT_ONCE, Tally, failure, logprob_count
from layered_llm.transport.http.generation.sources import Batch
from layered_llm.transport.http.sglang.generate_body import LogprobsAsked
from layered_llm.transport.http.sglang.generate_logprobs import GrowingLogprobs

Json = dict[str, Any]


@attrs.frozen(kw_only=True)
class NativePlan:
    """What is known of an answer before its first event."""

    ids: Sequence[str]
    """Of each prompt."""
    prompt_tokens: Sequence[int]
    choices_per_prompt: int
    is_batch: bool
    logprobs: Sequence[LogprobsAsked | None]
    """Of each prompt."""
    retry_after_s: int


@attrs.define
class _Choice:
    id: str
    prompt_tokens: int
    logprobs: GrowingLogprobs | None
    text: str = ""
    token_ids: list[int] = attrs.field(factory=list)
    finish_reason: FinishReason = FinishReason.RUNNING
    matched_stop: str | int | None = None
    cached_tokens: int | None = None
    """Known when all choices of the prompt have ended."""

    def add(self, delta: ChoiceDelta) -> None:
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        if self.logprobs is not None:
            self.logprobs.add(delta.logprobs, delta.prompt_logprobs)
        self.finish_reason, self.matched_stop = delta.finish_reason, delta.matched_stop

    @property
    def matched(self) -> str | int | None:
        """What ended the choice: a stop string, a stop token, or the model's own end token."""
        if self.finish_reason is not FinishReason.STOP or self.cached_tokens is None:
            return None
        return self.matched_stop if self.matched_stop is not None else next(reversed(self.token_ids), None)

    @property
    def ending(self) -> Json | None:
        """SGLang's finish_reason; a stop tells the string or the token that it was."""
        if self.cached_tokens is None:
            return None
        match self.finish_reason:
            case FinishReason.LENGTH:
                return {"type": "length", "length": len(self.token_ids)}
            case FinishReason.STOP:
                return {"type": "stop", "matched": self.matched}
            case FinishReason.ABORT:
                return {"type": "abort", "message": "The request was ended by its id."}
            case _:
                raise InvariantViolated(f"a request ended without an error while a choice was {self.finish_reason.name}")


class NativeAnswer:
    """One answer, sent as it grows (`encode`) or at once (`add`, `body`)."""

    def __init__(self, plan: NativePlan) -> None:
        self._plan = plan
        self.tally = Tally(len(plan.ids), plan.retry_after_s)
        self._choices = [
            _Choice(
                public if plan.choices_per_prompt == 1 else f"{public}-{place}",
                prompt_tokens,
                None if logprobs is None else GrowingLogprobs(logprobs),
            )
            for public, prompt_tokens, logprobs in zip(plan.ids, plan.prompt_tokens, plan.logprobs, strict=True)
            for place in range(plan.choices_per_prompt)
        ]
        self._logprobs = 0
        self._aborted: set[int] = set()
        """Prompts whose requests were ended by their ids."""

    def end_aborted(self, prompt: int) -> Batch:
        """An abort is an end like any other: what there is of the text stands, as in SGLang."""
        self._aborted.add(prompt)
        first = prompt * self._plan.choices_per_prompt
        choices = self._choices[first : first + self._plan.choices_per_prompt]
        usage = Usage(
            prompt_tokens=self._plan.prompt_tokens[prompt],
            completion_tokens=sum(len(choice.token_ids) for choice in choices),
            cached_tokens=0,
        )
        ends = [
            ChoiceDelta(choice=place, text="", token_ids=(), finish_reason=FinishReason.ABORT, matched_stop=None)
            for place, choice in enumerate(choices)
            if choice.finish_reason is FinishReason.RUNNING
        ]
        return (*((prompt, end) for end in ends), (prompt, RequestEnded(usage=usage, error=None)))

    @property
    def is_long(self) -> bool:
        return self._logprobs > MOST_LOGPROBS_AT_ONCE

    def encode(self, batch: Batch) -> Iterator[bytes]:
        """An event for each choice that has news, and the end of the stream when the batch completes it."""
        changed = self.add(batch)
        if self.tally.error is not None:
            yield failure(self.tally.error) if self.tally.is_complete else b""
            return
        if not any(self._plan.logprobs):
            yield b"".join(sse.framed(self._event(index)) for index in changed) + (sse.DONE if self.tally.is_complete else b"")
            return
        for index in changed:
            yield from self._caught_up(self._choices[index])
            yield sse.framed(self._event(index))
        if self.tally.is_complete:
            yield sse.DONE

    def add(self, batch: Batch) -> Sequence[int]:
        """The indices of the choices that have news, in their order."""
        changed: set[int] = set()
        for prompt, event in batch:
            first = prompt * self._plan.choices_per_prompt
            match event:
                case ChoiceDelta():
                    if prompt not in self._aborted:
                        self.tally.note_delta(event)
                    self._logprobs += logprob_count(event)
                    self._choices[first + event.choice].add(event)
                    changed.add(first + event.choice)
                case RequestEnded():
                    self.tally.note_end(event)
                    for index in range(first, first + self._plan.choices_per_prompt):
                        self._choices[index].cached_tokens = event.usage.cached_tokens
                        changed.add(index)
                case _ as unreachable:
                    assert_never(unreachable)
        return sorted(changed)

    def pieces(self) -> Iterator[bytes]:
        """The response's JSON in pieces of bounded work, empty ones included; what is written is not kept."""
        for place, choice in enumerate(self._choices):
            yield from self._caught_up(choice)
            told = self._told(choice)
            choice.logprobs = None
            yield (b"[" if not place else b",") + told if self._plan.is_batch else told
        if self._plan.is_batch:
            yield b"]"

    def _caught_up(self, choice: _Choice) -> Iterator[bytes]:
        while choice.logprobs is not None and choice.logprobs.encode_some():
            yield b""

    def _event(self, index: int) -> bytes:
        return self._told(self._choices[index], **({"index": index} if self._plan.is_batch else {}))

    def _told(self, choice: _Choice, **place: int) -> bytes:
        known = {} if choice.logprobs is None else choice.logprobs.members()
        told = sse.to_json(
            {
                **place,
                "text": choice.text,
                "output_ids": choice.token_ids,
                "meta_info": {
                    "id": choice.id,
                    "finish_reason": choice.ending,
                    "matched_stop": choice.matched,
                    "prompt_tokens": choice.prompt_tokens,
                    "completion_tokens": len(choice.token_ids),
                    "cached_tokens": choice.cached_tokens or 0,
                },
            }
        )
        # What is encoded already goes between the last member of meta_info, which is the last itself, and the two ends.
        return told[:-2] + b"".join(b',"%b":%b' % (name.encode(), items) for name, items in known.items()) + told[-2:]
