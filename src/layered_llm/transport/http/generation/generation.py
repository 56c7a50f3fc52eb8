"""From a parsed request to its response, streamed or whole; the same for all endpoints that generate.

Must not know: JSON names, routes, how an answer is worded.

Order: everything that can be refused is refused before the first byte; the headers of a stream go out when the engine has
queued the request; from then on every failure is an event of the stream, followed by its regular end, and never a cut.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Final, Protocol, assert_never

import attrs
import trio
from quart import Response

from layered_llm.domain.finish import AbortReason
from layered_llm.domain.messages.api_text import Accepted, Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.placement import Placement
from layered_llm.domain.ports.engine import BacklogFull, EngineLost, EngineStream, RequestAborted
from layered_llm.domain.sampling import SamplingParams
from layered_llm.transport.http.exchange import api_error, sse
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.connection import Exchange
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.fair_work import FairWork
from layered_llm.transport.http.exchange.replies import JSON_TYPE, error_reply
from layered_llm.transport.http.generation.answer import Tally, failure, kept_bytes
from layered_llm.transport.http.generation.sources import (
    Batch,
    EventSource,
    Patience,
    PromptAborted,
    Quiet,
    next_batch,
    open_source,
)

logger = logging.getLogger(__name__)

Streams = tuple[EngineStream, ...]
_PIECE_COST: Final = 10_000
"""Of a piece of an answer, in bytes of a body that takes as long to parse."""


class Asked(Protocol):
    """What every generation request has."""

    @property
    def prompts(self) -> Sequence[Prompt]: ...

    def params_of(self, prompt: int) -> SamplingParams:
        """Of the prompt at this place; all have the same number of choices."""

    @property
    def placement(self) -> Placement: ...


class Answer(Protocol):
    """An answer as it grows."""

    @property
    def tally(self) -> Tally: ...

    def end_aborted(self, prompt: int) -> Batch | None:
        """What the answer is to be given in place of what a prompt's request still owes, which was ended by its id.

        None: the whole answer ends with an error.
        """


class StreamAnswer(Answer, Protocol):
    """One that is sent as it grows."""

    def encode(self, batch: Batch) -> Iterator[bytes]:
        """All that `batch` brings as server-sent events, and the end of the stream when the batch completes the answer.

        In pieces of bounded work, empty ones included.
        """


class WholeAnswer(Answer, Protocol):
    """One that is sent at once."""

    def add(self, batch: Batch) -> object:
        """Takes what `batch` brings."""

    @property
    def is_long(self) -> bool:
        """Whether `pieces` are many, so that other responses would feel them."""

    def pieces(self) -> Iterator[bytes]:
        """The response body, as JSON, of a complete answer without an error; in pieces of bounded work, empty ones included."""


@attrs.frozen
class Begun:
    """A request of which every prompt is queued."""

    streams: Streams
    accepted: tuple[Accepted, ...]
    """One for each of `streams`."""
    names: Sequence[str]
    """What the client calls each of `streams`; none where it has no names for them."""
    source: EventSource
    patience: Patience


async def respond_in_pieces(
    context: HttpContext,
    exchange: Exchange,
    request: Asked,
    answer_to: Callable[[Begun], StreamAnswer],
    *,
    is_one_body: bool = True,
    names: Sequence[str] = (),
) -> Response:
    """The streamed response to `request`; all that it opens belongs to `exchange`.

    With `is_one_body` the id of the first prompt's request ends all of them, else each prompt has an id of its own. `names` are
    what the client calls the request of each prompt, or none.
    """
    begun = await _begin(context, exchange, request, is_one_body=is_one_body, names=names)
    if isinstance(begun, ApiError):
        return error_reply(begun)
    for stream in begun.streams:
        stream.bound(context.answers.open(exchange.account))
    writer = _StreamWriter(context=context, account=exchange.account, begun=begun, answer=answer_to(begun))
    response = Response(_body(writer), status=HTTPStatus.OK, headers=dict(sse.HEADERS))
    response.timeout = None
    return response


async def respond_at_once(
    context: HttpContext,
    exchange: Exchange,
    request: Asked,
    answer_to: Callable[[Begun], WholeAnswer],
    *,
    is_one_body: bool = True,
    names: Sequence[str] = (),
) -> Response:
    """The same for a response that is whole."""
    begun = await _begin(context, exchange, request, is_one_body=is_one_body, names=names)
    if isinstance(begun, ApiError):
        return error_reply(begun)
    answer = answer_to(begun)
    try:
        error = await _complete(context, exchange, begun, answer) or answer.tally.error
    except EngineLost as why:
        _close(begun.streams, _reason_of(why))
        error = context.lost(why)
    if error is not None:
        _close(begun.streams, AbortReason.SERVER_FAILED)
        return error_reply(error)
    if not answer.is_long:
        return Response(b"".join(answer.pieces()), content_type=JSON_TYPE)
    response = Response(_long_body(context.fair_work, exchange.account, answer.pieces()), content_type=JSON_TYPE)
    response.timeout = None
    return response


async def _begin(
    context: HttpContext, exchange: Exchange, request: Asked, *, is_one_body: bool, names: Sequence[str]
) -> Begun | ApiError:
    streams = _open_streams(context, exchange, request, is_one_body=is_one_body)
    if isinstance(streams, ApiError):
        return streams
    for stream, name in zip(streams, names, strict=False):
        stream.call(name)
    patience = Patience(context.settings.first_token_timeout_s, context.settings.idle_timeout_s)
    accepted = await _await_queued(context, patience, streams)
    if isinstance(accepted, ApiError):
        return accepted
    exchange.queued_s = trio.current_time()
    return Begun(streams, accepted, names, open_source(streams, exchange.nursery), patience)


def _open_streams(context: HttpContext, exchange: Exchange, request: Asked, *, is_one_body: bool) -> Streams | ApiError:
    """Submits one engine request for each prompt; synchronous, so that all or none of them are there to be awaited."""
    refused = context.unavailable() or context.priority_refused(request.placement)
    if refused is not None:
        return refused
    context.drain.hold(exchange.owner)
    placement = attrs.evolve(request.placement, tenant=exchange.holder.tenant)
    streams: list[EngineStream] = []
    for place, prompt in enumerate(request.prompts):
        stream = context.engine.open(exchange.owner, prompt, request.params_of(place), placement)
        if isinstance(stream, Rejected):
            _close(streams, AbortReason.SIBLING_REJECTED)
            return api_error.rejection(stream, context.settings.retry_after_s)
        streams.append(stream)
        exchange.streams.append(stream)
        if is_one_body and len(streams) > 1:
            stream.join(streams[0].request)
    return tuple(streams)


async def _await_queued(context: HttpContext, patience: Patience, streams: Streams) -> tuple[Accepted, ...] | ApiError:
    """The verdict on each request, when all are queued."""
    accepted: list[Accepted] = []
    try:
        for stream in streams:
            match await _verdict(stream, context.drain, patience):
                case None if patience.is_over:
                    _close(streams, AbortReason.TIMEOUT)
                    return patience.error()
                case None:
                    _close(streams, AbortReason.SHUTDOWN)
                    return context.shutting_down()
                case Accepted() as verdict:
                    accepted.append(verdict)
                case Rejected() as verdict:
                    _close(streams, AbortReason.SIBLING_REJECTED)
                    return api_error.rejection(verdict, context.settings.retry_after_s)
                case _ as unreachable:
                    assert_never(unreachable)
    except EngineLost as why:
        _close(streams, _reason_of(why))
        return context.lost(why)
    return tuple(accepted)


async def _verdict(stream: EngineStream, drain: Drain, patience: Patience) -> Accepted | Rejected | None:
    begun_s = trio.current_time()
    with drain.bounded(patience.left_s):
        verdict = await stream.verdict()
        patience.spend(trio.current_time() - begun_s)
        return verdict
    patience.spend(trio.current_time() - begun_s)
    return None


async def _complete(context: HttpContext, exchange: Exchange, begun: Begun, answer: WholeAnswer) -> ApiError | None:
    """Gives `answer` all that comes, or says why that ended before."""
    kept = context.answers.open(exchange.account)
    exchange.owner.callback(kept.release)
    while not answer.tally.is_complete:
        try:
            batch = await next_batch(begun.source, context.drain, begun.patience, math.inf)
        except PromptAborted as why:
            batch = _aborted(answer, why)
        match batch:
            case Quiet.OVERDUE:
                _close(begun.streams, AbortReason.TIMEOUT)
                return begun.patience.error()
            case Quiet.DRAINED | Quiet.SILENCE:
                _close(begun.streams, AbortReason.SHUTDOWN)
                return context.shutting_down()
            case _ if (over := kept.take(kept_bytes(batch))) is not None:
                _close(begun.streams, AbortReason.OVER_BUDGET)
                return context.no_room_for_answer(over, kept)
            case _:
                answer.add(batch)
    return None


def _aborted(answer: Answer, why: PromptAborted) -> Batch:
    """With what `answer` ends a prompt whose request was aborted; raises `why` where that ends the whole answer."""
    batch = answer.end_aborted(why.prompt)
    if batch is None:
        raise why
    return batch


async def _long_body(fair_work: FairWork, account: str, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Written while it is sent, by turns between accounts, and no further than it is taken."""
    # Holds nothing across a yield: a generator that was never started runs no finally.
    while True:
        piece = await fair_work.in_turn(account, _PIECE_COST, lambda: next(pieces, None))
        if piece is None:
            return
        if piece:
            yield piece


async def _body(writer: "_StreamWriter") -> AsyncIterator[bytes]:
    # Holds nothing: a generator that was never started runs no finally.
    while not writer.is_done:
        yield await writer.next_bytes()


@attrs.define(kw_only=True, eq=False)
class _StreamWriter:
    _context: HttpContext
    _account: str
    _begun: Begun
    _answer: StreamAnswer
    _pieces: Iterator[bytes] = attrs.field(init=False, default=iter(()))
    """What is still to be sent of the last batch."""
    _next: bytes | None = attrs.field(init=False, default=None)
    _failed: bool = attrs.field(init=False, default=False)
    is_done: bool = attrs.field(init=False, default=False)

    async def next_bytes(self) -> bytes:
        """What to send next; a failure becomes the stream's last words."""
        try:
            return await self._next_bytes()
        except EngineLost as why:
            _close(self._begun.streams, _reason_of(why))
            return self._fail(self._context.lost(why))
        except Exception:
            logger.exception("stream ended by an unexpected error")
            return self._fail(api_error.INTERNAL_ERROR)
        finally:
            self.is_done = self._failed or (self._answer.tally.is_complete and self._next is None)
            if self.is_done:
                # The client may be slow to take the last bytes; what is still open is not to wait for that.
                _close(self._begun.streams, AbortReason.SERVER_FAILED)

    async def _next_bytes(self) -> bytes:
        if self._next is not None:
            return await self._context.fair_work.in_turn(self._account, _PIECE_COST, self._take_piece)
        heartbeat_s = self._context.settings.heartbeat_interval_s
        try:
            batch = await next_batch(self._begun.source, self._context.drain, self._begun.patience, heartbeat_s)
        except PromptAborted as why:
            batch = _aborted(self._answer, why)
        match batch:
            case Quiet.SILENCE:
                return sse.HEARTBEAT
            case Quiet.OVERDUE:
                _close(self._begun.streams, AbortReason.TIMEOUT)
                return self._fail(self._begun.patience.error())
            case Quiet.DRAINED:
                _close(self._begun.streams, AbortReason.SHUTDOWN)
                return self._fail(self._context.shutting_down())
            case _:
                self._pieces = self._answer.encode(batch)
                return self._take_piece()

    def _take_piece(self) -> bytes:
        """The next piece of the batch; the one behind it is made ready, so that the last one is known as the last."""
        piece = next(self._pieces, b"") if self._next is None else self._next
        self._next = next(self._pieces, None)
        return piece

    def _fail(self, error: ApiError) -> bytes:
        self._failed = True
        return failure(error)


def _close(streams: Iterable[EngineStream], reason: AbortReason) -> None:
    for stream in streams:
        stream.close(reason)


def _reason_of(why: EngineLost) -> AbortReason:
    """What the other requests of a body are left for when one of them is gone."""
    match why:
        case RequestAborted():
            return AbortReason.ADMINISTRATIVE
        case BacklogFull():
            return AbortReason.OVER_BUDGET
        case EngineLost():
            return AbortReason.SERVER_FAILED
        case _ as unreachable:
            assert_never(unreachable)
