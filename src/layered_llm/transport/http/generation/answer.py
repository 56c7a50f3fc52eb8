"""The answer to one generation request, as it grows: events in, chunks or one whole response out.

Must not know: HTTP, trio, where events come from.

Invariants: a choice's index is prompt * n + choice. Each choice has at most one opening, which comes with its first output,
and exactly one ending unless the request failed; after a failure nothing but the error follows.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, assert_never

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.stream import ChoiceDelta, RequestEnded, SampledLogprob, Usage, logprob_entries
from layered_llm.transport.http.exchange import sse
from layered_llm.transport.http.exchange.api_error import LOGITS_NOT_FINITE, ApiError, error_of, queue_timeout
from layered_llm.transport.http.generation.sources import Batch
from layered_llm.transport.http.openai.schema import responses
from layered_llm.transport.http.openai.schema.logprobs import LogprobWriter, Naming, by_text, prompt_object
from layered_llm.transport.http.openai.schema.responses import Json, ResponseHead, Shape

MOST_LOGPROBS_AT_ONCE: Final = 500
"""Some 2 ms of wording and encoding."""
_TOKENS_OF_A_PIECE: Final = 24
"""With 20 likeliest tokens beside each as many as above."""
_TOKEN_BYTES: Final = 40
_LOGPROB_BYTES: Final = 250
"""Of the objects that are kept, and of what is written from them, as measured."""


@attrs.frozen(kw_only=True)
class AnswerPlan:
    """What is known of an answer before its first event."""

    shape: Shape
    head: ResponseHead
    prompts: int
    choices_per_prompt: int
    prompt_tokens: int
    """Of all prompts together."""
    include_usage: bool
    continuous_usage: bool
    echoes_logprobs: bool = False
    """The log probabilities of a choice begin with those of its prompt."""
    retry_after_s: int = 1
    """When the client of an answer that the engine had no room for may try again."""
    tells_prompts: bool = False
    """Those of the prompts are told apart, where the answer is whole."""
    naming: Naming = by_text
    """What log probabilities call a token."""
    prompt_ids: tuple[Sequence[int], ...] | None = None
    """The ids of each prompt's tokens, where they are told, and with them those of the output."""

    def logprobs(
        self, writers: dict[int, LogprobWriter], index: int, output: Sequence[SampledLogprob], prompt: Sequence[SampledLogprob]
    ) -> Json | None:
        """What to tell of these tokens of a choice, by the one of `writers` that words them, which is made where none is."""
        echoed = prompt if self.echoes_logprobs else ()
        if not (output or echoed):
            return None
        if index not in writers:
            writers[index] = self.shape.start_logprobs(self.naming)
        return writers[index].write(output, echoed)

    def is_plain(self, delta: ChoiceDelta) -> bool:
        """Whether a chunk of `delta`, if it is not the choice's first, differs in its text alone from the one before."""
        if not delta.text or delta.finish_reason is not FinishReason.RUNNING or delta.logprobs or delta.prompt_logprobs:
            return False
        return not self.continuous_usage and self.prompt_ids is None

    def choice(self, choice: Json, token_ids: Sequence[int]) -> Json:
        """A choice, whole or in pieces, with what is told of its tokens."""
        return choice if self.prompt_ids is None else responses.with_token_ids(choice, token_ids)

    def body(self, body: Json) -> Json:
        """A response, or the first chunk of a choice, with what is told of the prompt."""
        if self.prompt_ids is None:
            return body
        prompts = [self.prompt_ids[choice["index"] // self.choices_per_prompt] for choice in body["choices"]]
        return responses.with_prompt_ids(self.shape, body, prompts)


@attrs.define
class Tally:
    """How many of an answer's requests go on, what they used, and what went wrong; the first failure completes the answer."""

    _open: int
    _retry_after_s: int
    _usages: list[Usage] = attrs.field(init=False, factory=list)
    error: ApiError | None = attrs.field(init=False, default=None)
    """Why there is no answer, known when complete."""
    is_complete: bool = attrs.field(init=False, default=False)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in self._usages),
            completion_tokens=sum(usage.completion_tokens for usage in self._usages),
            cached_tokens=sum(usage.cached_tokens for usage in self._usages),
        )

    def note_delta(self, delta: ChoiceDelta) -> None:
        # The request's own end may follow and says more.
        if delta.finish_reason is FinishReason.ABORT:
            self.error = self.error or error_of("engine_error", "The server ended the request.")
        elif delta.finish_reason is FinishReason.ERROR:
            self.error = self.error or LOGITS_NOT_FINITE
        elif delta.finish_reason is FinishReason.QUEUE_TIMEOUT:
            self.error = self.error or queue_timeout(self._retry_after_s)

    def note_end(self, ended: RequestEnded) -> None:
        self._open -= 1
        self._usages.append(ended.usage)
        if ended.error is not None:
            self.error = self._worded(ended.error)
        self.is_complete = not self._open or self.error is not None

    def _worded(self, message: str) -> ApiError:
        """The error that a choice told, if any did, in the words of its request."""
        return attrs.evolve(self.error or error_of("engine_error", message), message=message)


_TALLY: Final[Any] = attrs.Factory(lambda self: Tally(self._plan.prompts, self._plan.retry_after_s), takes_self=True)


@attrs.define
class StreamedAnswer:
    """Turns batches of events into server-sent events."""

    _plan: AnswerPlan
    tally: Tally = attrs.field(init=False, default=_TALLY)
    _opened: set[int] = attrs.field(init=False, factory=set)
    """Choices that had output."""
    _writers: dict[int, LogprobWriter] = attrs.field(init=False, factory=dict)
    """What words the log probabilities of each choice that had any."""
    _begun: set[int] = attrs.field(init=False, factory=set)
    """Choices that a chunk was sent of."""
    _plain: dict[int, sse.TextEvent] = attrs.field(init=False, factory=dict)
    """What most events of a choice are: nothing but more text."""
    _completion_tokens: int = attrs.field(init=False, default=0)

    def end_aborted(self, prompt: int) -> Batch | None:
        """OpenAI has no word for an answer that somebody else ended."""
        return None

    def encode(self, batch: Batch) -> Iterator[bytes]:
        """All that `batch` brings, and the end of the stream when the batch completes it, in pieces of bounded work."""
        logprobs, events = 0, list[bytes]()
        for prompt, event in batch:
            match event:
                case ChoiceDelta():
                    index = prompt * self._plan.choices_per_prompt + event.choice
                    if index in self._begun and self._plan.is_plain(event):
                        # Most are: there is nothing to note, to divide or to count.
                        self._completion_tokens += len(event.token_ids)
                        events.append(self._plain_event(index).with_text(event.text))
                        continue
                    self.tally.note_delta(event)
                    for portion in portions(event, echoes=self._plan.echoes_logprobs):
                        events.extend(self._delta(index, portion))
                        logprobs += logprob_count(portion)
                        if logprobs >= MOST_LOGPROBS_AT_ONCE:
                            yield b"".join(events)
                            logprobs, events = 0, []
                case RequestEnded():
                    self.tally.note_end(event)
                case _ as unreachable:
                    assert_never(unreachable)
        if self.tally.is_complete:
            events.append(self._ending())
        yield b"".join(events)

    def _delta(self, index: int, delta: ChoiceDelta) -> Iterator[bytes]:
        if index not in self._opened:
            self._opened.add(index)
            opening = self._plan.shape.opening(index)
            if opening is not None:
                yield sse.event(self._chunk(self._plan.choice(opening, ())))
        self._completion_tokens += len(delta.token_ids)
        for choice in self._pieces(index, delta):
            yield sse.event(self._chunk(choice))

    def _plain_event(self, index: int) -> sse.TextEvent:
        if index not in self._plain:
            self._plain[index] = sse.TextEvent.of(lambda text: self._chunk(self._plan.shape.piece(index, text, None)))
        return self._plain[index]

    def _pieces(self, index: int, delta: ChoiceDelta) -> Iterator[Json]:
        plan, shape = self._plan, self._plan.shape
        logprobs = plan.logprobs(self._writers, index, delta.logprobs, delta.prompt_logprobs)
        name = responses.finish_reason_name(delta.finish_reason)
        has_news = delta.text or logprobs is not None or (delta.token_ids and plan.prompt_ids is not None)
        if has_news:
            piece = plan.choice(shape.piece(index, delta.text, logprobs), delta.token_ids)
            if name is not None and plan.continuous_usage:
                # A chunk of its own for the end would tell the same count again.
                yield {**piece, "finish_reason": name, "stop_reason": delta.matched_stop}
                return
            yield piece
        if name is not None:
            yield plan.choice(shape.ending(index, name, delta.matched_stop), ())

    def _chunk(self, choice: Json) -> Json:
        chunk = responses.envelope(self._plan.head, self._plan.shape.chunk_object, [choice])
        if choice["index"] not in self._begun:
            self._begun.add(choice["index"])
            chunk = self._plan.body(chunk)
        if self._plan.include_usage:
            chunk["usage"] = self._running_usage() if self._plan.continuous_usage else None
        return chunk

    def _running_usage(self) -> Json:
        return responses.usage_object(
            Usage(prompt_tokens=self._plan.prompt_tokens, completion_tokens=self._completion_tokens, cached_tokens=0)
        )

    def _ending(self) -> bytes:
        if self.tally.error is not None:
            return failure(self.tally.error)
        if not self._plan.include_usage:
            return sse.DONE
        chunk = responses.envelope(self._plan.head, self._plan.shape.chunk_object, [])
        return sse.event({**chunk, "usage": responses.usage_object(self.tally.usage)}) + sse.DONE


def logprob_count(delta: ChoiceDelta) -> int:
    """How many log probabilities it has, those of the likeliest tokens counted."""
    if not (delta.logprobs or delta.prompt_logprobs):
        return 0
    return logprob_entries(delta.prompt_logprobs) + logprob_entries(delta.logprobs)


def kept_bytes(batch: Batch) -> int:
    """About what it takes to keep `batch`."""
    size = 0
    for _, event in batch:
        if isinstance(event, ChoiceDelta):
            size += len(event.text) + _TOKEN_BYTES * len(event.token_ids)
            if event.logprobs or event.prompt_logprobs:
                size += _LOGPROB_BYTES * logprob_count(event)
    return size


def portions(delta: ChoiceDelta, *, echoes: bool) -> Iterable[ChoiceDelta]:
    """`delta`, divided where its log probabilities are more than should be worded at once: the text comes with the first."""
    count = logprob_count(delta)
    return (delta,) if count <= MOST_LOGPROBS_AT_ONCE else _divided(delta, count, delta.prompt_logprobs if echoes else ())


def _divided(delta: ChoiceDelta, count: int, echoed: Sequence[SampledLogprob]) -> Iterator[ChoiceDelta]:
    tokens = len(echoed) + len(delta.logprobs)
    size = max(1, MOST_LOGPROBS_AT_ONCE * tokens // count)
    for place in range(0, max(1, tokens), size):
        is_first, is_last = not place, place + size >= tokens
        first, behind = (max(0, end - len(echoed)) for end in (place, place + size))
        portion = (*echoed[place : place + size], *delta.logprobs[first:behind])
        is_echo = is_first and bool(echoed)
        yield attrs.evolve(
            delta,
            text=delta.text if is_first else "",
            token_ids=delta.token_ids[first : None if is_last else behind],
            # Of an echo only the very first token has no probability.
            logprobs=() if is_echo else portion,
            prompt_logprobs=portion if is_echo else (),
            finish_reason=delta.finish_reason if is_last else FinishReason.RUNNING,
            matched_stop=delta.matched_stop if is_last else None,
        )


def failure(error: ApiError) -> bytes:
    """The end of a stream that had already begun: clients find the error in the event, and the body ends in good order."""
    return sse.event(error.body()) + sse.DONE


@attrs.define
class _GrowingChoice:
    texts: list[str] = attrs.field(factory=list)
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[Sequence[SampledLogprob]] = attrs.field(factory=list)
    """As they came: packed, until they are written."""
    prompt_logprobs: Sequence[SampledLogprob] = ()
    finish_reason: FinishReason = FinishReason.RUNNING
    matched_stop: str | int | None = None


@attrs.define
class WholeAnswer:
    """Gathers batches of events for a response that is sent at once."""

    _plan: AnswerPlan
    tally: Tally = attrs.field(init=False, default=_TALLY)
    _choices: Sequence[_GrowingChoice] = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: [_GrowingChoice() for _ in range(self._plan.prompts * self._plan.choices_per_prompt)], takes_self=True
        ),
    )
    _logprobs: int = attrs.field(init=False, default=0)

    def end_aborted(self, prompt: int) -> Batch | None:
        """OpenAI has no word for an answer that somebody else ended."""
        return None

    @property
    def is_long(self) -> bool:
        return self._logprobs > MOST_LOGPROBS_AT_ONCE

    def add(self, batch: Batch) -> None:
        for prompt, event in batch:
            match event:
                case ChoiceDelta():
                    self.tally.note_delta(event)
                    self._add_delta(prompt * self._plan.choices_per_prompt + event.choice, event)
                case RequestEnded():
                    self.tally.note_end(event)
                case _ as unreachable:
                    assert_never(unreachable)

    def _add_delta(self, index: int, delta: ChoiceDelta) -> None:
        self._logprobs += logprob_count(delta)
        choice = self._choices[index]
        choice.texts.append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            choice.logprobs.append(delta.logprobs)
        choice.prompt_logprobs = choice.prompt_logprobs or delta.prompt_logprobs
        choice.finish_reason, choice.matched_stop = delta.finish_reason, delta.matched_stop

    def pieces(self) -> Iterator[bytes]:
        """The response's JSON in pieces of bounded work, empty ones included; what is written is not kept."""
        if not self.is_long:
            yield sse.to_json(self._result())
            return
        yield from sse.json_pieces(self._result())

    def _result(self) -> Json:
        choices = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
        body = self._plan.body(responses.response_object(self._plan.shape, self._plan.head, choices, self.tally.usage))
        if not self._plan.tells_prompts:
            return body
        prompts = [self._told_prompt(choice) for choice in self._choices]
        return responses.with_prompts(self._plan.shape, body, "prompt_logprobs", prompts)

    def _told_prompt(self, choice: _GrowingChoice) -> object:
        prompt = choice.prompt_logprobs
        return sse.Written(partial(_prompt_pieces, prompt)) if self.is_long else prompt_object(prompt)

    def _whole(self, index: int, choice: _GrowingChoice) -> Json:
        name = responses.finish_reason_name(choice.finish_reason)
        if name is None:
            raise InvariantViolated(f"request ended without an error while choice {index} was {choice.finish_reason.name}")
        shape = self._plan.shape
        logprobs: Any
        if self.is_long:
            logprobs = sse.Written(partial(self._logprob_pieces, choice))
        else:
            logprobs = self._plan.logprobs({}, index, tuple(chain.from_iterable(choice.logprobs)), choice.prompt_logprobs)
        whole = shape.whole(index, "".join(choice.texts), logprobs, name, choice.matched_stop)
        return self._plan.choice(whole, choice.token_ids)

    def _logprob_pieces(self, choice: _GrowingChoice) -> Iterator[bytes]:
        echoed = choice.prompt_logprobs if self._plan.echoes_logprobs else ()
        tokens = chain(echoed, *choice.logprobs)
        writer, lists = self._plan.shape.start_logprobs(self._plan.naming), dict[str, bytearray | None]()
        choice.logprobs = []
        is_echo = bool(echoed)
        while portion := tuple(islice(tokens, _TOKENS_OF_A_PIECE)):
            # Of an echo only the very first token has no probability.
            written = writer.write((), portion) if is_echo else writer.write(portion)
            is_echo = False
            for name, items in written.items():
                _append_items(lists, name, items)
            yield b""
        yield sse.to_json(None) if not lists else b"{%b}" % b",".join(map(_member, lists, lists.values()))


def _append_items(lists: dict[str, bytearray | None], name: str, items: list[object] | None) -> None:
    if items is None:
        lists[name] = None
        return
    known = lists.get(name) or bytearray()
    known += (b"," if known else b"") + sse.to_json(items)[1:-1]
    lists[name] = known


def _member(name: str, items: bytearray | None) -> bytes:
    return sse.to_json(name) + b":" + (b"null" if items is None else b"[%b]" % bytes(items))


def _prompt_pieces(prompt: Sequence[SampledLogprob]) -> Iterator[bytes]:
    for place in range(0, len(prompt), _TOKENS_OF_A_PIECE):
        told = prompt_object(prompt[place - 1 : place + _TOKENS_OF_A_PIECE] if place else prompt[:_TOKENS_OF_A_PIECE])
        yield (b"," if place else b"[") + sse.to_json(told[1:] if place else told)[1:-1]
    yield b"]" if prompt else b"[]"
