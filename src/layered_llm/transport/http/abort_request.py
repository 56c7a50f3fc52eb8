"""`POST /abort_request`: ends a request by the id in its response, whichever API process has it, or all requests: those of the
API key that it comes with.

Must not know: how the process that has a request is found.

The body is SGLang's, `{"rid": "chatcmpl-…"}` or `{"abort_all": true}`; `id` and `request_id` are taken for `rid` too.
"""

from typing import Final

from quart import Response, request

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.ids import RequestId
from layered_llm.transport.http import api_error
from layered_llm.transport.http.api_error import ApiError
from layered_llm.transport.http.connection import exchange_of
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.engine_port import EngineLost
from layered_llm.transport.http.openai_schema.fields import MalformedBody, decode_object
from layered_llm.transport.http.public_ids import request_of
from layered_llm.transport.http.replies import error_reply, json_reply

_NAMES: Final = ("rid", "id", "request_id")


async def abort_request(context: HttpContext) -> Response:
    """200 with the number of requests that were ended; 404 when the one that was named is not open, or not any more."""
    body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
    asked = _asked(body)
    if isinstance(asked, ApiError):
        return error_reply(asked)
    try:
        count = await context.engine.abort(asked, exchange_of(request).tenant)
    except EngineLost:
        return error_reply(api_error.abort_unanswered(context.settings.retry_after_s))
    if asked is not None and not count:
        return error_reply(api_error.request_not_open())
    return json_reply({"aborted": count})


def _asked(body: bytes) -> RequestId | ApiError | None:
    """The request to end, None for all."""
    try:
        fields = decode_object(body)
    except MalformedBody as error:
        return api_error.bad_request(str(error), code="invalid_json")
    is_for_all = fields.get("abort_all", False)
    named = [name for name in _NAMES if fields.get(name) not in (None, "")]
    if not isinstance(is_for_all, bool):
        return api_error.bad_parameter(ParameterError("abort_all", "abort_all must be true or false"))
    if len(named) + is_for_all != 1:
        return api_error.bad_parameter(ParameterError("rid", "give either one id, as rid, or abort_all"))
    if is_for_all:
        return None
    (name,) = named
    asked = request_of(fields[name]) if isinstance(fields[name], str) else None
    if asked is None:
        return api_error.bad_parameter(ParameterError(name, f"{name} must be the id of a response of this server"))
    return asked
