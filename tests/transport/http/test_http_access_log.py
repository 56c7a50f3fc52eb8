import json
from typing import Any

import pytest
import trio

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.verdicts import RejectReason
from layered_llm.transport.http.exchange.access_log import AccessEntry, AccessLog
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from support.http_client import CHAT, COMPLETIONS, MESSAGES, Call, application, get, post
from support.http_engine import FIRST_REQUEST, READY, FakeEngine, FakeStream, accepting, answering, ended, text_delta
from support.http_server import read_until, running

KEYS = ApiKeys.of([("alice", "sk-alpha")])
STOP = text_delta("!", token_ids=(2, 3), finish_reason=FinishReason.STOP)
NOW_S = 1_700_000_000.25


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.log = AccessLog(write=self.lines.append, wall_clock=lambda: NOW_S, is_json=True)

    def told(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(json.loads(line)[name] for name in names) for line in self.lines]


@pytest.mark.parametrize(
    ("path", "body", "id_"),
    [
        (CHAT, {"messages": MESSAGES}, f"chatcmpl-{FIRST_REQUEST:016x}"),
        (COMPLETIONS, {"prompt": "hi"}, f"cmpl-{FIRST_REQUEST:016x}"),
        (COMPLETIONS, {"prompt": "hi", "stream": True}, f"cmpl-{FIRST_REQUEST:016x}"),
        (COMPLETIONS, {"prompt": "hi", "request_id": "mine"}, "cmpl-mine"),
        ("/generate", {"text": "hi"}, f"gen-{FIRST_REQUEST:016x}"),
        ("/generate", {"text": "hi", "rid": "mine"}, "mine"),
    ],
)
async def test_a_generation_is_one_line_with_its_tokens_and_how_it_ended(path: str, body: dict[str, Any], id_: str) -> None:
    lines = Lines()
    app = application(FakeEngine(answering(text_delta("a"), STOP, ended())), keys=KEYS, access_log=lines.log)

    await post(
        app,
        path,
        body,
        {"Authorization": "Bearer sk-alpha", "X-Request-Id": "r-1"}
        if "mine" not in id_
        else {"Authorization": "Bearer sk-alpha"},
    )

    (line,) = (json.loads(line) for line in lines.lines)
    assert ("POST", path, 200, True) == (line["method"], line["path"], line["status"], line["complete"])
    assert (3, 3, "stop", "alice") == (line["prompt_tokens"], line["completion_tokens"], line["finish_reason"], line["key"])
    assert (id_ if "mine" in id_ or path == "/generate" else id_.partition("-")[0] + "-r-1") == line["id"]
    assert "2023-11-14T22:13:20.250Z" == line["time"]
    assert 0 <= line["queued_ms"] <= line["first_token_ms"] <= line["total_ms"]


async def test_what_generates_nothing_is_a_line_too() -> None:
    lines = Lines()
    app = application(FakeEngine(), access_log=lines.log)

    for path in ("/health", "/v1/models", "/nowhere", "/v1/models/other"):
        await get(app, path)
    await Call(app).run("GET", CHAT)

    assert [200, 200, 404, 404, 405] == [status for (status,) in lines.told("status")]
    assert {(None, None, None, None)} == set(lines.told("prompt_tokens", "queued_ms", "finish_reason", "id"))


async def test_refusals_are_lines_of_their_own_status() -> None:
    lines = Lines()

    def reject(stream: FakeStream) -> None:
        stream.reject(RejectReason.QUEUE_FULL)

    app = application(FakeEngine(reject), keys=KEYS, access_log=lines.log)
    key = {"Authorization": "Bearer sk-alpha"}
    for headers in ({}, key, {**key, "Origin": "http://evil.example"}):
        await post(app, COMPLETIONS, {"prompt": "hi"}, headers)
    await post(app, COMPLETIONS, b"{", key)

    assert [(401, None), (429, "alice"), (403, None), (400, "alice")] == lines.told("status", "key")


async def test_a_client_that_leaves_before_its_answer_is_a_line_without_a_status() -> None:
    lines = Lines()
    engine = FakeEngine(accepting)
    call = Call(application(engine, access_log=lines.log))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", COMPLETIONS, b'{"prompt": "hi"}')
        await engine.wait_opened()
        call.gone.set()

    assert [(None, False, "client_gone")] == lines.told("status", "complete", "finish_reason")


async def test_a_client_that_leaves_in_a_stream_is_a_line_at_its_end() -> None:
    lines = Lines()
    engine = FakeEngine(answering(text_delta("a")))
    call = Call(application(engine, access_log=lines.log))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call.run, "POST", COMPLETIONS, b'{"prompt": "hi", "stream": true}')
        while not call.exchange.sends:
            await trio.lowlevel.checkpoint()
        before = list(lines.lines)
        call.gone.set()

    assert [] == before
    assert [(200, False, 1, "client_gone")] == lines.told("status", "complete", "completion_tokens", "finish_reason")


async def test_over_a_real_connection_each_request_is_one_line() -> None:
    lines = Lines()
    async with running(application(FakeEngine(), access_log=lines.log)) as server:
        client = await server.connect()
        for path in (b"/health?key=sk-secret", b"/a%0Ab"):
            await client.send_all(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await read_until(client, b"}")
        await client.aclose()

    assert [("/health", 200), ("/a%0Ab", 404)] == lines.told("path", "status")
    assert "sk-secret" not in "".join(lines.lines)


HOSTILE = 'a\nlayered-llm: forged\r\x1b[2J\x7f\x00 "\\\u202e\udc80é'


@pytest.mark.parametrize("end", ["", ")", "=", "%"])
@pytest.mark.parametrize("is_json", [True, False])
def test_nothing_that_a_client_sends_breaks_a_line(is_json: bool, end: str) -> None:
    lines: list[str] = []
    log = AccessLog(write=lines.append, wall_clock=lambda: NOW_S, is_json=is_json)

    log.note(
        AccessEntry(
            method=HOSTILE + end,
            path=HOSTILE + "x" * 10_000 + end,
            status=200,
            is_complete=True,
            total_s=0.001,
            id=HOSTILE + end,
            request_id=HOSTILE + end,
            key=HOSTILE + end,
        )
    )

    (line,) = lines
    assert line.isascii()
    assert line.isprintable()
    assert len(line) < 5_000
    if is_json:
        assert HOSTILE + end == json.loads(line)["id"]


def test_a_line_of_text_reads_from_left_to_right() -> None:
    lines: list[str] = []
    log = AccessLog(write=lines.append, wall_clock=lambda: NOW_S)
    entry = AccessEntry(
        method="POST",
        path="/v1/completions",
        status=200,
        is_complete=False,
        total_s=1.2345,
        queued_s=0.001,
        first_token_s=0.25,
        prompt_tokens=3,
        completion_tokens=9,
        finish_reasons=("stop", "client_gone"),
        id="cmpl-1",
        request_id="r",
        key="alice",
    )
    log.note(entry)

    expected = (
        "2023-11-14T22:13:20.250Z POST /v1/completions 200 (client gone) prompt=3 completion=9 queued=1ms first_token=250ms "
        "total=1234.5ms finish=stop,client_gone id=cmpl-1 request=r key=alice"
    )
    assert [expected] == lines


async def test_an_engine_that_is_not_there_yet_is_a_503_in_the_log() -> None:
    lines = Lines()
    status = type(READY)(phase=EnginePhase.STARTING, generation=0, supervisor_pid=0, detail="loading")
    await post(application(FakeEngine(current=status), access_log=lines.log), COMPLETIONS, {"prompt": "x"})

    assert [(503, None)] == lines.told("status", "finish_reason")
