"""Reasons for which a request is not taken; the numbers that explain them travel beside the reason.

Must not know: HTTP statuses, message texts of an endpoint.
"""

import enum


@enum.unique
class RejectReason(enum.IntEnum):
    """Who can mend it decides: the first group is the caller's, the second asks for another try later."""

    TEMPLATE_ERROR = 1
    NO_CHAT_TEMPLATE = 2
    CONTEXT_LENGTH_EXCEEDED = 3
    EMPTY_PROMPT = 4
    TOKEN_OUT_OF_VOCABULARY = 5
    INVALID_PARAMETER = 6
    NEVER_FITS = 7
    """More pages than the whole KV pool has."""

    QUEUE_FULL = 16
    TOO_MANY_STREAMS = 17
    """Of one tenant."""
    SHUTTING_DOWN = 18
    SERVER_FULL = 19
    """Too many streams of all tenants together."""
    NOT_READY = 20
    """The engine starts, or starts again after a fault."""

    @property
    def is_retryable(self) -> bool:
        return self >= RejectReason.QUEUE_FULL


@enum.unique
class RefuseReason(enum.IntEnum):
    """Those of them that the scheduler gives, by the same names and numbers."""

    CONTEXT_LENGTH_EXCEEDED = RejectReason.CONTEXT_LENGTH_EXCEEDED
    NEVER_FITS = RejectReason.NEVER_FITS
    QUEUE_FULL = RejectReason.QUEUE_FULL
    TOO_MANY_STREAMS = RejectReason.TOO_MANY_STREAMS
    SERVER_FULL = RejectReason.SERVER_FULL
