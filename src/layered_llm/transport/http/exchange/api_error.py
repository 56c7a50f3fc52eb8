"""An error as this server tells it to its clients: a value that handlers return and never raise.

Must not know: the framework's response class.

Invariants: 4xx is the caller's to mend and is never worth a retry, but for 429; 5xx says whether the same request may be
sent again, since clients of the OpenAI family repeat every 5xx unless they are told not to.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, assert_never

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

    def body(self) -> dict[str, Any]:
        """In OpenAI's words."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


_KINDS: Final[Mapping[str, tuple[int, str]]] = {
    "aborted": (HTTPStatus.SERVICE_UNAVAILABLE, ABORTED),
    "abort_unanswered": (HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE),
    "admin_key_required": (HTTPStatus.FORBIDDEN, PERMISSION),
    "engine_error": (HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR),
    "engine_lost": (HTTPStatus.SERVICE_UNAVAILABLE, SERVER_ERROR),
    "first_token_timeout": (HTTPStatus.GATEWAY_TIMEOUT, TIMEOUT),
    "health_timeout": (HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE),
    "host_not_allowed": (HTTPStatus.FORBIDDEN, PERMISSION),
    "http_version_not_supported": (HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, INVALID_REQUEST),
    "idle_timeout": (HTTPStatus.GATEWAY_TIMEOUT, TIMEOUT),
    "internal_error": (HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR),
    "invalid_api_key": (HTTPStatus.UNAUTHORIZED, INVALID_REQUEST),
    "logits_not_finite": (HTTPStatus.INTERNAL_SERVER_ERROR, SERVER_ERROR),
    "model_not_found": (HTTPStatus.NOT_FOUND, INVALID_REQUEST),
    "origin_not_allowed": (HTTPStatus.FORBIDDEN, PERMISSION),
    "queue_timeout": (HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE),
    "request_not_found": (HTTPStatus.NOT_FOUND, INVALID_REQUEST),
    "request_timeout": (HTTPStatus.REQUEST_TIMEOUT, INVALID_REQUEST),
    "server_full": (HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE),
    "shutting_down": (HTTPStatus.SERVICE_UNAVAILABLE, UNAVAILABLE),
    "slow_body": (HTTPStatus.REQUEST_TIMEOUT, TIMEOUT),
    "too_many_bytes": (HTTPStatus.TOO_MANY_REQUESTS, RATE_LIMIT),
    "unsupported_media_type": (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST),
}
"""Status and type by code."""


def error_of(code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> ApiError:
    """The error of one of the codes that always have the same status and type."""
    status, type_ = _KINDS[code]
    return ApiError(status=status, type=type_, message=message, param=param, code=code, retry_after_s=retry_after_s)


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(status=HTTPStatus.BAD_REQUEST, type=INVALID_REQUEST, message=message, param=param, code=code)


def bad_parameter(error: ParameterError) -> ApiError:
    return bad_request(error.message, param=error.param, code="invalid_value")


NO_API_KEY: Final = error_of(
    "invalid_api_key", "This server needs an API key, in a header 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'."
)
WRONG_API_KEY: Final = error_of("invalid_api_key", "The API key is not one of this server's.")
TWO_API_KEYS: Final = error_of(
    "invalid_api_key",
    "The request has two different API keys; send one, as 'Authorization: Bearer KEY' or as 'X-Api-Key: KEY'.",
)
NOT_THE_ADMIN_KEY: Final = error_of(
    "admin_key_required", "This needs the admin key that the server was started with, in a header 'Authorization: Bearer KEY'."
)
"""A key is there that does not open this."""
MISSING_ADMIN_KEY: Final = attrs.evolve(NOT_THE_ADMIN_KEY, status=HTTPStatus.UNAUTHORIZED, type=INVALID_REQUEST)
ABORTED_BY_ID: Final = error_of("aborted", "The request was aborted by its id.")
"""It is not for the client's library to start it again."""
REQUEST_NOT_OPEN: Final = error_of(
    "request_not_found", "No request with this id is open: it has ended, or there was none.", param="rid"
)
REQUEST_UNKNOWN: Final = error_of(
    "request_not_found", "No request with this id was asked with this API key, or it ended too long ago."
)
LOGITS_NOT_FINITE: Final = error_of("logits_not_finite", "The model's numbers for the request are not finite.")
"""They are NaN or infinite: the same request will fare no better."""
INTERNAL_ERROR: Final = error_of("internal_error", "The server met an unexpected error; its log says more.")
"""A fault of this process; its cause is in the log and not for the caller."""


def no_admin_key(*, is_guarded: bool) -> ApiError:
    """There is nobody who may ask for it."""
    why = "it has API keys" if is_guarded else "it is reached from other machines"
    message = (
        f"Only the server's administrator may ask for this, and it has no admin key while {why}. "
        "Start it with --admin-key-file FILE (or --admin-key, or LAYERED_LLM_ADMIN_KEY), and send that key."
    )
    return error_of("admin_key_required", message)


def shutting_down(retry_after_s: int) -> ApiError:
    return error_of("shutting_down", "The server is shutting down.", retry_after_s=retry_after_s)


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
    message = "The engine that was working on this request is gone; the request was ended."
    return error_of("engine_lost", message, retry_after_s=None if status.phase is EnginePhase.FAILED else retry_after_s)


def queue_timeout(retry_after_s: int) -> ApiError:
    """The engine had no room for the request in time; it computed nothing of it, so that another try may do better."""
    return error_of("queue_timeout", "The request waited too long to be started.", retry_after_s=retry_after_s)


def abort_unanswered(retry_after_s: int) -> ApiError:
    message = "A process that may have the request does not answer."
    return error_of("abort_unanswered", message, retry_after_s=retry_after_s)


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
