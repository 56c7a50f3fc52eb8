"""`/`, `/version`, `/server_info` and `/get_model_info`: what this server is, and how it was set.

Must not know: where settings come from, what the engine does with them.

The names are vLLM's (`/version`) and SGLang's (the others, which it has under two paths each).
"""

from quart import Response

from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.replies import json_reply
from layered_llm.transport.http.openai.schema.responses import Json
from layered_llm.transport.http.operations.debug_state import debug_state


async def root(context: HttpContext) -> Response:
    """For whoever opens the server's address in a browser."""
    return json_reply(
        {
            "name": "layered_llm",
            "description": "An LLM inference server with OpenAI's API.",
            "version": context.settings.about.version,
            "base_url": "/v1",
            "models": "/v1/models",
            "docs": "/docs",
            "openapi": "/openapi.json",
            "health": "/health",
            "metrics": "/metrics",
        }
    )


async def version(context: HttpContext) -> Response:
    return json_reply({"version": context.settings.about.version})


async def model_info(context: HttpContext) -> Response:
    about = context.settings.about
    return json_reply(
        {"model_path": about.model_path, "tokenizer_path": about.model_path, "is_generation": True, **_model(context)}
    )


async def server_info(context: HttpContext) -> Response:
    """Settings without secrets, limits, and where the scheduler stands; answered whatever the engine does."""
    about = context.settings.about
    scheduler = debug_state(await context.engine.state())["scheduler"]
    return json_reply(
        {
            "version": about.version,
            "status": context.engine.status().phase.value,
            "model_path": about.model_path,
            **_model(context),
            "settings": dict(about.settings),
            "internal_states": [] if scheduler is None else [scheduler],
        }
    )


def _model(context: HttpContext) -> Json:
    limits = context.engine.status().limits
    return {
        "served_model_names": list(context.settings.served_model_names),
        "max_model_len": None if limits is None else limits.context_tokens,
        "vocab_size": None if limits is None else limits.vocabulary_size,
    }
