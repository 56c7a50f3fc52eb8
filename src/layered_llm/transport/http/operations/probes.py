"""`/health`, `/ready`, `/metrics`, `/debug/state` and `/flush_cache`: answered whatever the engine does.

Must not know: what is done with the answers.
"""

from http import HTTPStatus

from quart import Response

from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.replies import error_reply, json_reply
from layered_llm.transport.http.operations.debug_state import debug_state
from layered_llm.transport.http.operations.metrics import CONTENT_TYPE, render


async def health(context: HttpContext) -> Response:
    """200 while requests are taken and worked at, else 503 with the phase and what is going on."""
    status = context.engine.status()
    phase, detail = status.phase.value, status.trouble or status.detail
    if context.drain.is_active:
        phase, detail = EnginePhase.STOPPING.value, "The server is shutting down."
    elif status.phase is EnginePhase.READY:
        if not status.stalled:
            return json_reply({"status": "ok"})
        phase = "stalled"
    return json_reply(
        {"status": "unavailable", "phase": phase, "detail": detail},
        HTTPStatus.SERVICE_UNAVAILABLE,
        {"Retry-After": str(context.settings.retry_after_s)},
    )


async def metrics(context: HttpContext) -> Response:
    """Prometheus text; with a lost engine what this process counts."""
    state = await context.engine.state()
    is_ready = context.engine.status().phase is EnginePhase.READY
    settings = context.settings
    model_name = settings.served_model_names[0] if settings.has_vllm_metrics else None
    text = render(state, is_ready=is_ready, vllm_model_name=model_name, settings=settings.about.settings)
    return Response(text, content_type=CONTENT_TYPE)


async def flush_cache(context: HttpContext) -> Response:
    """Frees every page that only the prefix cache holds; running requests keep theirs."""
    scheduler = debug_state(await context.engine.state(flush_cache=True))["scheduler"]
    if scheduler is None:
        return error_reply(context.engine_lost())
    return json_reply({name: scheduler[name] for name in ("pages_total", "pages_free", "pages_cached", "pages_used")})


async def debug(context: HttpContext) -> Response:
    return json_reply(debug_state(await context.engine.state()))
