"""`GET /v1/models` and `GET /v1/models/{id}`.

Must not know: where models come from.
"""

from quart import Response

from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.openai_schema.responses import Json, model_list, model_object
from layered_llm.transport.http.replies import error_reply, json_reply


async def list_models(context: HttpContext) -> Response:
    return json_reply(model_list([_model(context, name) for name in context.settings.served_model_names]))


async def retrieve_model(context: HttpContext, name: str) -> Response:
    served = context.served_name(name)
    return error_reply(served) if isinstance(served, ApiError) else json_reply(_model(context, served))


def _model(context: HttpContext, name: str) -> Json:
    limits = context.engine.status().limits
    return model_object(name, context.settings.created_s, None if limits is None else limits.context_tokens)
