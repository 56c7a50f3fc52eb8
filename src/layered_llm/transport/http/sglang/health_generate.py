"""`GET /health_generate`: whether a token comes, as SGLang asks it.

Must not know: JSON names of a request, how the engine is reached.

Unlike `/health` it waits its turn and is computed, so that it also finds an engine that is alive and does nothing.
"""

from collections.abc import Iterator
from typing import Final

import attrs
import trio
from quart import Response, request

from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.placement import ANYWHERE, Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import ChoiceDelta
from layered_llm.transport.http.exchange import sse
from layered_llm.transport.http.exchange.api_error import error_of
from layered_llm.transport.http.exchange.connection import exchange_of
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.replies import error_reply
from layered_llm.transport.http.generation.answer import Tally
from layered_llm.transport.http.generation.generation import respond_at_once
from layered_llm.transport.http.generation.sources import Batch

LIMIT_S: Final = 20.0
"""How long the token may take; SGLang's default."""


async def health_generate(context: HttpContext) -> Response:
    """200 when the engine computed a token, else why not."""
    with trio.move_on_after(LIMIT_S):
        answer = _OneToken(Tally(1, context.settings.retry_after_s))
        return await respond_at_once(context, exchange_of(request), _Probe(), lambda _begun: answer)
    message = f"No token came within {LIMIT_S:g} s."
    return error_reply(error_of("health_timeout", message, retry_after_s=context.settings.retry_after_s))


@attrs.frozen
class _Probe:
    """Implements `Asked`: one token after one token."""

    prompts: tuple[Prompt, ...] = attrs.field(factory=lambda: (Prompt.of_token_ids([0]),))
    placement: Placement = ANYWHERE

    def params_of(self, prompt: int) -> SamplingParams:
        return SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


@attrs.define
class _OneToken:
    """Implements `WholeAnswer`."""

    tally: Tally

    def end_aborted(self, prompt: int) -> Batch | None:
        return None

    @property
    def is_long(self) -> bool:
        return False

    def add(self, batch: Batch) -> None:
        for _, event in batch:
            if isinstance(event, ChoiceDelta):
                self.tally.note_delta(event)
            else:
                self.tally.note_end(event)

    def pieces(self) -> Iterator[bytes]:
        yield sse.to_json({"status": "ok"})
