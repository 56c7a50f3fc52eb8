"""The sentences that say to a caller why the engine did not take a request, or did not finish it.

Must not know: when a request is refused.
"""

from types import MappingProxyType
from typing import Final, assert_never

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.text_scheduler import Refused
from layered_llm.domain.verdicts import RefuseReason, RejectReason

FAILURES: Final = MappingProxyType(
    {
        FinishReason.ERROR: (
            "The model computed numbers for this request that are not finite (NaN or infinity), so it was ended."
        ),
        FinishReason.QUEUE_TIMEOUT: (
            "The engine is busy: the request waited in its queue for as long as it may; try again later."
        ),
    }
)
"""Why the scheduler ended a choice that did not end by itself."""
FELL_BEHIND: Final = "The server's HTTP process fell behind and its requests were ended; try again."


def fell_behind(request: RequestId, incarnation: int) -> Rejected:
    """The verdict on a request whose API process stopped taking messages before there was another one."""
    return Rejected(request=request, reason=RejectReason.QUEUE_FULL, message=FELL_BEHIND, incarnation=incarnation)


def refusal_sentence(refused: Refused) -> str:
    """One sentence with the numbers of the scheduler's reason."""
    limit, actual = refused.limit, refused.actual
    match refused.reason:
        case RefuseReason.NEVER_FITS:
            return f"The request needs {actual} pages of KV cache, but the whole pool has {limit}; lower max_tokens."
        case RefuseReason.CONTEXT_LENGTH_EXCEEDED:
            return f"The engine's context length is {limit} tokens, but prompt and output would take {actual} of them."
        case RefuseReason.QUEUE_FULL:
            return f"The engine is busy: {actual} requests wait, and at most {limit} may; try again later."
        case RefuseReason.TOO_MANY_STREAMS | RefuseReason.SERVER_FULL:
            whose = "The server" if refused.reason is RefuseReason.SERVER_FULL else "This API key"
            streams = "stream" if actual == 1 else "streams"
            return f"{whose} has {actual} {streams} open, and at most {limit} may be; try again later."
        case _:
            assert_never(refused.reason)
