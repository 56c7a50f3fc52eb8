"""Why a choice ended.

Must not know: how a client is told.
"""

import enum


@enum.unique
class FinishReason(enum.IntEnum):
    """Terminal states of one choice; 0 in a column means that the choice goes on."""

    RUNNING = 0
    STOP = 1
    """eos, a stop token id, or a stop string."""
    LENGTH = 2
    TOOL_CALLS = 3
    ABORT = 4
    ERROR = 5
    """The model computed numbers for it that are not finite: NaN, or no likeliest token."""
    QUEUE_TIMEOUT = 6
    """Nothing of the request had started when its time in the queue was over."""


@enum.unique
class AbortReason(enum.IntEnum):
    """Why the scope of a request was left before the request had ended."""

    CLIENT_GONE = 1
    """Disconnect, reset, or the caller left the stream."""
    TIMEOUT = 2
    SHUTDOWN = 3
    PEER_DIED = 4
    """The API process that asked is gone; its text worker speaks for it."""
    SLOW_CONSUMER = 5
    """The API process no longer takes what is sent to it."""
    ADMINISTRATIVE = 6
    OVER_BUDGET = 7
    """Its answer, which is sent at once, takes more memory than there is for it."""
    SLOW_READER = 8
    """The client takes nothing of what it is sent."""
    SIBLING_REJECTED = 9
    """Another prompt of the same body was not taken."""
    SERVER_FAILED = 10
    """Another prompt of the same body, or what makes the answer, failed in the server."""
