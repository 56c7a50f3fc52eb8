"""Entries of an API process's table of open requests."""

from layered_llm.domain.ids import RequestId, TextId
from layered_llm.service.engine_client.open_requests import OpenRequests
from layered_llm.service.engine_client.request_stream import RequestStream, TextConnection
from layered_llm.transport.outbox import Outbox


def connection(index: int = 0) -> TextConnection:
    return TextConnection(TextId(index), 1, Outbox(100))


def entered(
    table: OpenRequests, request: RequestId, to: TextConnection | None = None, *, choices: int = 1, now_s: float = 0.0
) -> RequestStream:
    """An open request whose opening message is not sent."""
    to = connection() if to is None else to
    assert to.outbox.reserve()
    return table.open(request, to, now_s, choices=choices)
