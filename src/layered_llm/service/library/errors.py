"""What a program that embeds the engine may have to handle.

Must not know: trio, how the engine is run.
"""

import os

import attrs

from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.verdicts import RejectReason


class RequestRejected(Exception):  # noqa: N818 - states what happened
    """The engine did not take the request, and holds nothing of it.

    `reason.is_retryable` tells a full queue from what will never work.
    """

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(rejected.message)
        self._rejected = rejected
        self.reason: RejectReason = rejected.reason
        self.message: str = rejected.message
        self.param: str | None = rejected.param

    def of_prompt(self, place: str) -> "RequestRejected":
        """The same, said of one prompt among several."""
        return RequestRejected(attrs.evolve(self._rejected, message=f"{place}: {self.message}"))


class RequestFailed(Exception):  # noqa: N818 - states what happened
    """The engine had the request and could not bring it to its end; the engine goes on."""

    def of_prompt(self, place: str) -> "RequestFailed":
        """The same, said of one prompt among several."""
        return RequestFailed(f"{place}: {self}")


class EngineClosed(Exception):  # noqa: N818 - states what happened
    """The engine, or the stream, is used after the block that it belonged to, after `close()`, or in a forked process."""


def check_process(owner_pid: int) -> None:
    """Raises EngineClosed in a process that was forked from the engine's: nothing of an engine but its memory is there."""
    if os.getpid() != owner_pid:
        raise EngineClosed(
            f"the engine belongs to process {owner_pid}, from which process {os.getpid()} was forked: open an engine in here, "
            "or start processes in another way than by fork"
        )
