"""An API process of this project as it is, but for its engine: tokens come from a clock in the same process, at a fixed rate.

    python -m benchmarks.peers.own_api INTERVAL_MS PORT

Every open request is given a token each INTERVAL_MS. Where the process cannot send them as they come they wait for it, as those
do that text workers sent. Left out is what an API process does beside HTTP: reading its links, 0.2 µs for a token.
"""

import sys
from functools import partial

import attrs
import trio

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import Abort, Accepted, ApiToText, Submit, TextEmitted
from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.engine_client.request_stream import TextConnection
from layered_llm.service.server.api import build_api
from layered_llm.service.settings.settings import load
from layered_llm.transport.http.hypercorn_server.listening import bind_sockets
from layered_llm.transport.http.hypercorn_server.serving import serve
from layered_llm.transport.outbox import Outbox

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SLOTS = 1 << 14
MESSAGES_AT_A_TIME = 256
"""As many as a link hands over at once."""
READY = EngineStatus(
    phase=EnginePhase.READY,
    generation=1,
    supervisor_pid=0,
    detail="ready",
    limits=EngineLimits(context_tokens=1 << 20, vocabulary_size=len(LETTERS)),
)


@attrs.define(eq=False)
class Clockwork:
    """Stands for a text worker and all behind it."""

    _client: EngineClient
    _interval_s: float
    _left: dict[RequestId, int] = attrs.Factory(dict)
    """Tokens that each request still gets."""
    _begun: trio.Event = attrs.Factory(trio.Event)

    async def send(self, message: ApiToText) -> None:
        """What the API process sends to its text worker."""
        await trio.lowlevel.checkpoint()
        match message:
            case Submit(request=request, params=params):
                self._left[request] = params.max_tokens or 1
                self._client.on_text(Accepted(request=request, prompt_tokens=1))
                self._begun.set()
            case Abort(request=request):
                self._left.pop(request, None)
            case _:
                raise ValueError(f"nobody asks this here: {message}")

    async def run(self) -> None:
        while True:
            await self._begun.wait()
            due_s = trio.current_time()
            while self._left:
                given = 0
                while self._left and due_s <= trio.current_time() and given < MESSAGES_AT_A_TIME:
                    self._client.on_text(self._next_message(given))
                    due_s += self._interval_s
                    given += 1
                await trio.sleep_until(due_s)
            self._begun = trio.Event()

    def _next_message(self, number: int) -> TextEmitted:
        """A token for each open request."""
        requests, letter = [*self._left], number % len(LETTERS)
        ended = [request for request in requests if self._left[request] == 1]
        reasons = [FinishReason.LENGTH if self._left[request] == 1 else FinishReason.RUNNING for request in requests]
        self._left = {request: left - 1 for request, left in self._left.items() if left > 1}
        return TextEmitted(
            requests=pack_i64(requests),
            choices=pack_i32(0 for _ in requests),
            texts=(LETTERS[letter],) * len(requests),
            token_counts=pack_i32(1 for _ in requests),
            token_ids=pack_i32(letter for _ in requests),
            finish_reasons=pack_i8(reason.value for reason in reasons),
            matched_stops=(None,) * len(requests),
            ended=pack_i64(ended),
            ended_prompt_tokens=pack_i32(1 for _ in ended),
            ended_completion_tokens=pack_i32(1 for _ in ended),
            ended_cached_tokens=pack_i32(0 for _ in ended),
            ended_errors=(None,) * len(ended),
        )


async def run_engine(client: EngineClient, interval_s: float) -> None:
    connection = TextConnection(TextId(0), READY.generation, Outbox(SLOTS))
    clockwork = Clockwork(client, interval_s)
    client.on_status(READY, (connection,))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.outbox.run, clockwork)
        nursery.start_soon(clockwork.run)


async def run_server(interval_s: float, port: int) -> None:
    api = build_api(load())
    application = attrs.evolve(api.application, run_engine=partial(run_engine, api.client, interval_s))
    sockets = bind_sockets("127.0.0.1", port, backlog=128)
    await serve(application, sockets=sockets, options=api.options, on_shutdown_requested=api.begin_drain)


if __name__ == "__main__":
    trio.run(run_server, float(sys.argv[1]) / 1e3, int(sys.argv[2]))
