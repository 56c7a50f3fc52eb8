"""The ASGI lifespan: the engine lives in it.

Must not know: what the engine is.

Startup is complete at once: a server answers nothing and obeys no signal before that, and `/health` is to tell of the phase
while a model loads.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import cast

import attrs
import trio
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope

logger = logging.getLogger(__name__)


@attrs.define(kw_only=True, eq=False)
class LifespanApplication:
    """Serves `app`, and runs `run_engine` from the server's start to its end.

    `run_engine` is cancelled when the server stops and must end within a deadline of its own; one that takes longer than
    `stop_warning_s` is named in the log. When it ends early or fails, the application goes on answering, so that the
    engine's status can tell clients why nothing works.
    """

    _app: ASGIFramework
    _run_engine: Callable[[], Awaitable[None]]
    _stop_warning_s: float

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        if not trio.lowlevel.in_trio_run():
            message = "this application needs Trio: run `hypercorn -k trio layered_llm.app`"
            await send(cast("ASGISendEvent", {"type": "lifespan.startup.failed", "message": message}))
            return
        await send(cast("ASGISendEvent", {"type": "lifespan.startup.complete"}))
        stopping = trio.Event()
        async with trio.open_nursery() as watch:
            async with trio.open_nursery() as engine:
                engine.start_soon(self._run_logged, stopping)
                await receive()
                stopping.set()
                watch.start_soon(self._warn_when_slow)
                engine.cancel_scope.cancel()
            watch.cancel_scope.cancel()
        await send(cast("ASGISendEvent", {"type": "lifespan.shutdown.complete"}))

    async def _run_logged(self, stopping: trio.Event) -> None:
        try:
            await self._run_engine()
        except Exception:
            logger.exception("the engine died")
        else:
            if not stopping.is_set():
                logger.error("the engine ended before the server did")

    async def _warn_when_slow(self) -> None:
        await trio.sleep(self._stop_warning_s)
        logger.warning("the engine takes more than %g s to stop", self._stop_warning_s)
