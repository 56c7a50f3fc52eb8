"""Records of requests, and a server that answers after so many virtual seconds."""

from collections.abc import Callable

import attrs
import trio

from layered_llm.client.bench.load import PlannedRequest
from layered_llm.client.bench.records import Failure, RequestRecord, RunRecord, Tally
from layered_llm.client.chunks import Usage


def make_usage(*, prompt: int = 10, completion: int = 2, cached: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def make_record(
    *,
    index: int = 0,
    due_s: float = 0.0,
    sent_s: float | None = None,
    chunks_s: tuple[float, ...] = (),
    ended_s: float = 1.0,
    usage: Usage | None = None,
    failure: Failure | None = None,
) -> RequestRecord:
    return RequestRecord(
        index=index,
        due_s=due_s,
        sent_s=due_s if sent_s is None else sent_s,
        chunk_times_s=chunks_s,
        ended_s=ended_s,
        usage=usage,
        failure=failure,
    )


def make_run(*requests: RequestRecord, duration_s: float = 2.0, aborted: int = 0, interrupted: bool = False) -> RunRecord:
    return RunRecord(
        duration_s=duration_s, requests=requests, aborted=aborted, peak_open=len(requests), interrupted=interrupted
    )


@attrs.define
class FakeSender:
    """Satisfies Sender: each answer takes `service_s` seconds."""

    service_s: Callable[[PlannedRequest], float]
    sent: list[PlannedRequest] = attrs.field(factory=list)

    async def send(self, request: PlannedRequest, tally: Tally) -> RequestRecord:
        self.sent.append(request)
        sent_s = trio.current_time()
        await trio.sleep(self.service_s(request))
        tally.chunk_arrived()
        now_s = trio.current_time()
        return make_record(
            index=request.index, due_s=request.due_s, sent_s=sent_s, chunks_s=(now_s,), ended_s=now_s, usage=make_usage()
        )
