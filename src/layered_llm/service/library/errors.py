"""What a program that embeds the engine may have to handle.

Must not know: trio, how the engine is run.
"""

from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.verdicts import RejectReason


class RequestRejected(Exception):  # noqa: N818 - states what happened
    """The engine did not take the request, and holds nothing of it.

    `reason.is_retryable` tells a full queue from what will never work.
    """

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self.reason: RejectReason = rejected.reason
        self.message: str = rejected.message
        self.param: str | None = rejected.param


class RequestFailed(Exception):  # noqa: N818 - states what happened
    """The engine had the request and could not bring it to its end; the engine goes on."""


class EngineClosed(Exception):  # noqa: N818 - states what happened
    """The engine, or the stream, is used after the block that it belonged to, or after `close()`."""
