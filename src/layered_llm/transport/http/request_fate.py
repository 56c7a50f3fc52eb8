"""`GET /requests/ID`: whether a request is open, and how it ended; one of the same API key, or, for an admin, anybody's.

Must not know: how the process that had a request is found.

Another one's request is as one that never was. The id is that of a response, or what the client itself called the request.
"""

from quart import Response, request

from layered_llm.domain.engine import EngineLost
from layered_llm.transport.http import api_error
from layered_llm.transport.http.abort_request import LONGEST_ID_CHARS
from layered_llm.transport.http.connection import exchange_of
from layered_llm.transport.http.context import HttpContext
from layered_llm.transport.http.public_ids import names_of, request_of
from layered_llm.transport.http.replies import error_reply, json_reply


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
