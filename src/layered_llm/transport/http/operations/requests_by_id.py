"""`POST /abort_request` ends a request by the id in its response, `GET /requests/ID` says whether it is open or how it ended:
whichever API process has it, one of the same API key, or, for an admin, anybody's. Another one's is as one that never was. All
requests are ended only for those who may change others' things.

Must not know: how the process that has a request is found.

The body is SGLang's, `{"rid": "chatcmpl-…"}` or `{"abort_all": true}`; `id` and `request_id` are taken for `rid` too. What the
client itself called the request, in its body or in X-Request-Id, names it with and without the prefix of the response's id.
"""

from typing import Final

from quart import Response, request

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.transport.http.exchange import api_error
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.exchange.api_keys import Access, refused
from layered_llm.transport.http.exchange.connection import exchange_of
from layered_llm.transport.http.exchange.context import HttpContext
from layered_llm.transport.http.exchange.public_ids import names_of, request_of
from layered_llm.transport.http.exchange.replies import error_reply, json_reply
from layered_llm.transport.http.openai.schema.body_fields import MAX_REQUEST_ID_CHARS
from layered_llm.transport.http.openai.schema.fields import MalformedBody, decode_object, text

LONGEST_ID_CHARS: Final = 2 * MAX_REQUEST_ID_CHARS
"""Every id that a response may have is shorter."""
_NAMES: Final = ("rid", "id", "request_id")


async def abort_request(context: HttpContext) -> Response:
    """200 with the number of requests that were ended; 404 when the one that was named is not open, or not any more."""
    exchange = exchange_of(request)
    asked = await exchange.body.parsed(_asked, context.fair_work, exchange.account)
    if isinstance(asked, ApiError):
        return error_reply(asked)
    holder = exchange.holder
    is_refused = refused(Access.ADMIN, holder, context.keys, context.listening) if asked is None else None
    if is_refused is not None:
        context.refusals.count(is_refused)
        return error_reply(is_refused)
    tenant = None if holder.is_admin else holder.tenant
    try:
        if asked is None:
            count = await context.engine.abort(None, tenant)
        else:
            count = await context.engine.abort(request_of(asked), tenant, names_of(asked))
    except EngineLost:
        return error_reply(api_error.abort_unanswered(context.settings.retry_after_s))
    if asked is not None and not count:
        return error_reply(api_error.REQUEST_NOT_OPEN)
    return json_reply({"aborted": count})


async def request_fate(context: HttpContext, name: str) -> Response:
    """404 for what this key never asked, and for what ended so long ago that nobody remembers."""
    holder = exchange_of(request).holder
    if len(name) > LONGEST_ID_CHARS:
        return error_reply(api_error.REQUEST_UNKNOWN)
    try:
        fate = await context.engine.find(request_of(name), None if holder.is_admin else holder.tenant, names_of(name))
    except EngineLost:
        return error_reply(api_error.abort_unanswered(context.settings.retry_after_s))
    if fate is None:
        return error_reply(api_error.REQUEST_UNKNOWN)
    status = "open" if fate.is_open else "ended"
    return json_reply({"id": name, "status": status, "reason": fate.reason or None, "error": fate.error})


def _asked(body: bytes) -> str | ApiError | None:
    """The id of the request to end, None for all."""
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
    try:
        return _checked(name, fields[name])
    except ParameterError as error:
        return api_error.bad_parameter(error)


def _checked(param: str, value: object) -> str:
    asked = text(param, value)
    if len(asked) > LONGEST_ID_CHARS:
        raise ParameterError(param, f"{param} must have at most {LONGEST_ID_CHARS} characters, got {len(asked)}")
    return asked
