"""An error as this server tells it to its clients: a value that handlers return and never raise.

Must not know: JSON names, the framework's response class.

Invariants: 4xx is the caller's to mend and is never worth a retry, but for 429; 5xx says whether the same request may be
sent again, since clients of the OpenAI family repeat every 5xx unless they are told not to.
"""

from http import HTTPStatus
from typing import Final, assert_never

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus
from layered_llm.domain.verdicts import RejectReason

INVALID_REQUEST: Final = "invalid_request_error"
PERMISSION: Final = "permission_error"
RATE_LIMIT: Final = "rate_limit_error"
SERVER_ERROR: Final = "server_error"
UNAVAILABLE: Final = "unavailable_error"
TIMEOUT: Final = "timeout"
ABORTED: Final = "aborted"


@attrs.frozen(kw_only=True)
class ApiError:
    """What went wrong, in the terms of HTTP."""

    status: int
    type: str
    message: str
    param: str | None = None
    """The field of the request that is at fault."""
    code: str | None = None
    retry_after_s: int | None = None
    """Set exactly when the same request may succeed later."""

    def headers(self) -> dict[str, str]:
        """Headers that steer the retries of clients, and the challenge of a 401; none for errors that no client repeats."""
        if self.status == HTTPStatus.UNAUTHORIZED:
            return {"WWW-Authenticate": "Bearer"}
        if self.retry_after_s is not None:
            return {"Retry-After": str(self.retry_after_s), "x-should-retry": "true"}
        return {"x-should-retry": "false"} if self.status >= HTTPStatus.INTERNAL_SERVER_ERROR else {}


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(status=HTTPStatus.BAD_REQUEST, type=INVALID_REQUEST, message=message, param=param, code=code)


def bad_parameter(error: ParameterError) -> ApiError:
    return bad_request(error.message, param=error.param, code="invalid_value")


def no_api_key() -> ApiError:
    message = "This server needs an API key, in a header 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
    return ApiError(status=HTTPStatus.UNAUTHORIZED, type=INVALID_REQUEST, message=message, code="invalid_api_key")


def wrong_api_key() -> ApiError:
    message = "The API key is not one of this server's."
    return ApiError(status=HTTPStatus.UNAUTHORIZED, type=INVALID_REQUEST, message=message, code="invalid_api_key")


def two_api_keys() -> ApiError:
    message = "The request has two different API keys; send one, as 'Authorization: Bearer KEY' or as 'X-Api-Key: KEY'."
    return ApiError(status=HTTPStatus.UNAUTHORIZED, type=INVALID_REQUEST, message=message, code="invalid_api_key")


def no_admin_key(*, is_guarded: bool) -> ApiError:
    """There is nobody who may ask for it."""
    why = "it has API keys" if is_guarded else "it is reached from other machines"
    message = (
        f"Only the server's administrator may ask for this, and it has no admin key while {why}. "
        "Start it with --admin-key-file FILE (or --admin-key, or LAYERED_LLM_ADMIN_KEY), and send that key."
    )
    return ApiError(status=HTTPStatus.FORBIDDEN, type=PERMISSION, message=message, code="admin_key_required")


def not_the_admin_key(*, is_known: bool) -> ApiError:
    """A key is missing, or one is there that does not open this."""
    return ApiError(
        status=HTTPStatus.FORBIDDEN if is_known else HTTPStatus.UNAUTHORIZED,
        type=PERMISSION if is_known else INVALID_REQUEST,
        message="This needs the admin key that the server was started with, in a header 'Authorization: Bearer KEY'.",
        code="admin_key_required",
    )


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    message = f"The model {name!r} does not exist. This server serves: {', '.join(map(repr, served))}."
    return ApiError(status=HTTPStatus.NOT_FOUND, type=INVALID_REQUEST, message=message, param="model", code="model_not_found")


def shutting_down(retry_after_s: int) -> ApiError:
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        type=UNAVAILABLE,
        message="The server is shutting down.",
        code="shutting_down",
        retry_after_s=retry_after_s,
    )


def not_ready(status: EngineStatus, retry_after_s: int) -> ApiError:
    """The engine takes no request now; worth a retry unless it will not come back by itself."""
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        type=UNAVAILABLE,
        message=f"The engine is {status.phase.value}: {status.detail}",
        code=f"engine_{status.phase.value}",
        retry_after_s=None if status.phase is EnginePhase.FAILED else retry_after_s,
    )


def engine_lost(status: EngineStatus, retry_after_s: int) -> ApiError:
    """The engine died with the request in it."""
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        type=SERVER_ERROR,
        message="The engine that was working on this request is gone; the request was ended.",
        code="engine_lost",
        retry_after_s=None if status.phase is EnginePhase.FAILED else retry_after_s,
    )


def request_failed(message: str) -> ApiError:
    """The engine ended the request by an error of its own."""
    return ApiError(status=HTTPStatus.INTERNAL_SERVER_ERROR, type=SERVER_ERROR, message=message, code="engine_error")


def logits_not_finite(message: str) -> ApiError:
    """The model's numbers for the request are NaN or infinite: the same request will fare no better."""
    return ApiError(status=HTTPStatus.INTERNAL_SERVER_ERROR, type=SERVER_ERROR, message=message, code="logits_not_finite")


def queue_timeout(message: str, retry_after_s: int) -> ApiError:
    """The engine had no room for the request in time; it computed nothing of it, so that another try may do better."""
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        type=UNAVAILABLE,
        message=message,
        code="queue_timeout",
        retry_after_s=retry_after_s,
    )


def too_many_bytes(message: str, retry_after_s: int) -> ApiError:
    """One client asks this process to keep more than its share; later there may be room."""
    return ApiError(
        status=HTTPStatus.TOO_MANY_REQUESTS,
        type=RATE_LIMIT,
        message=message,
        code="too_many_bytes",
        retry_after_s=retry_after_s,
    )


def no_memory(message: str, retry_after_s: int) -> ApiError:
    """All clients together ask this process to keep more than it may."""
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        type=UNAVAILABLE,
        message=message,
        code="server_full",
        retry_after_s=retry_after_s,
    )


def answer_too_large(limit_bytes: int) -> ApiError:
    """Whenever it is asked again, it will not fit."""
    message = (
        f"The answer takes more than {limit_bytes} bytes before it is complete; ask for fewer choices, tokens or log "
        "probabilities, or for a stream."
    )
    return bad_request(message, param="stream", code="answer_too_large")


def slow_body(slowest_bytes_per_s: int, patience_s: float) -> ApiError:
    message = f"The body came slower than {slowest_bytes_per_s} bytes per second for {patience_s:g} s."
    return ApiError(status=HTTPStatus.REQUEST_TIMEOUT, type=TIMEOUT, message=message, code="slow_body")


def late_body(timeout_s: float) -> ApiError:
    message = f"The body was not complete after {timeout_s:g} s."
    return ApiError(status=HTTPStatus.REQUEST_TIMEOUT, type=INVALID_REQUEST, message=message, code="request_timeout")


def timed_out(message: str, code: str) -> ApiError:
    """The engine was too slow for a limit of this server; a repetition would only add to its load."""
    return ApiError(status=HTTPStatus.GATEWAY_TIMEOUT, type=TIMEOUT, message=message, code=code)


def aborted() -> ApiError:
    """Somebody ended the request by its id; it is not for the client's library to start it again."""
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE, type=ABORTED, message="The request was aborted by its id.", code="aborted"
    )


def request_not_open() -> ApiError:
    message = "No request with this id is open: it has ended, or there was none."
    return ApiError(status=HTTPStatus.NOT_FOUND, type=INVALID_REQUEST, message=message, param="rid", code="request_not_found")


def request_unknown() -> ApiError:
    message = "No request with this id was asked with this API key, or it ended too long ago."
    return ApiError(status=HTTPStatus.NOT_FOUND, type=INVALID_REQUEST, message=message, code="request_not_found")


def abort_unanswered(retry_after_s: int) -> ApiError:
    return ApiError(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        type=UNAVAILABLE,
        message="A process that may have the request does not answer.",
        code="abort_unanswered",
        retry_after_s=retry_after_s,
    )


def internal_error() -> ApiError:
    """A fault of this process; its cause is in the log and not for the caller."""
    return ApiError(
        status=HTTPStatus.INTERNAL_SERVER_ERROR,
        type=SERVER_ERROR,
        message="The server met an unexpected error; its log says more.",
        code="internal_error",
    )


def rejection(rejected: Rejected, retry_after_s: int) -> ApiError:
    """The error of a request that was not taken."""
    match rejected.reason:
        case RejectReason.QUEUE_FULL | RejectReason.TOO_MANY_STREAMS | RejectReason.SERVER_FULL:
            return ApiError(
                status=HTTPStatus.TOO_MANY_REQUESTS,
                type=RATE_LIMIT,
                message=rejected.message,
                param=rejected.param,
                code=rejected.reason.name.lower(),
                retry_after_s=retry_after_s,
            )
        case RejectReason.SHUTTING_DOWN:
            return shutting_down(retry_after_s)
        case RejectReason.NOT_READY:
            return ApiError(
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                type=UNAVAILABLE,
                message=rejected.message,
                code="engine_not_ready",
                retry_after_s=retry_after_s,
            )
        case RejectReason.CONTEXT_LENGTH_EXCEEDED | RejectReason.NEVER_FITS:
            return bad_request(rejected.message, param=rejected.param, code="context_length_exceeded")
        case (
            RejectReason.TEMPLATE_ERROR
            | RejectReason.NO_CHAT_TEMPLATE
            | RejectReason.EMPTY_PROMPT
            | RejectReason.TOKEN_OUT_OF_VOCABULARY
            | RejectReason.INVALID_PARAMETER
        ):
            return bad_request(rejected.message, param=rejected.param, code=rejected.reason.name.lower())
        case _ as unreachable:
            assert_never(unreachable)
