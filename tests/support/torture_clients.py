"""Clients on real sockets: those that leave as their visit says, and those that stay and check what they are told."""

import json
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Final

import attrs
import h2.config
import h2.connection
import h2.events
import httpx
import trio

from support.eventually import TIMEOUT_S
from support.torture_visits import Asked, Leaving, Stage, Visit

_STALLED_RECEIVE_BYTES: Final = 2048
_DONE: Final = "[DONE]"


@attrs.frozen(kw_only=True)
class Answer:
    """What a request was answered with: the texts and finish reasons of its choices, by their index."""

    texts: tuple[str, ...]
    reasons: tuple[str, ...]


def read_answer(asked: Asked, body: str) -> Answer:
    """Fails unless each choice has ended once, and a stream has one [DONE] as its last event."""
    return _read_stream(asked, body) if asked.body["stream"] else _read_whole(json.loads(body)["choices"])


def _read_whole(choices: Iterable[dict[str, Any]]) -> Answer:
    ordered = sorted(choices, key=lambda choice: int(choice["index"]))
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in ordered]
    return Answer(texts=tuple(texts), reasons=tuple(choice["finish_reason"] for choice in ordered))


def _read_stream(asked: Asked, body: str) -> Answer:
    events = [line.removeprefix("data: ") for line in body.split("\n\n") if line.startswith("data: ")]
    assert [len(events) - 1] == [place for place, event in enumerate(events) if event == _DONE], body
    texts: dict[int, str] = defaultdict(str)
    reasons: dict[int, str] = {}
    ends: Counter[int] = Counter()
    for choice in (choice for event in events[:-1] for choice in json.loads(event)["choices"]):
        index = choice["index"]
        assert not ends[index], f"choice {index} goes on behind its end: {body}"
        texts[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
        if choice["finish_reason"] is not None:
            ends[index] += 1
            reasons[index] = choice["finish_reason"]
    every = range(asked.body["n"])
    assert [1] * len(every) == [ends[index] for index in every], body
    return Answer(texts=tuple(texts[index] for index in every), reasons=tuple(reasons[index] for index in every))


async def complete(port: int, asked: Asked) -> Answer:
    """Asks as ordinary clients do, and waits for everything."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, verify=False) as client:
        response = await client.post(asked.path, json=dict(asked.body))
    assert 200 == response.status_code, response.text
    return read_answer(asked, response.text)


async def leave_h1(port: int, visit: Visit) -> None:
    with trio.socket.socket() as sock:
        if visit.stage is Stage.STALLED:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _STALLED_RECEIVE_BYTES)
        await sock.connect(("127.0.0.1", port))
        stream = trio.SocketStream(sock)
        message = visit.asked.h1_message + visit.extra
        try:
            await stream.send_all(message[: visit.sent_bytes] if visit.stage is Stage.REQUEST else message)
            match visit.stage:
                case Stage.REQUEST:
                    pass
                case Stage.RESPONSE:
                    await _read_some(stream, visit)
                case Stage.STALLED:
                    await trio.sleep(visit.patience_s)
            await _leave(stream, visit.leaving)
        except trio.BrokenResourceError:
            pass  # what the server refuses it closes before all of it has come


async def _read_some(stream: trio.SocketStream, visit: Visit) -> None:
    left = visit.response_bytes
    with trio.move_on_after(visit.patience_s):
        while left and (data := await stream.receive_some(left)):
            left -= len(data)


async def _leave(stream: trio.SocketStream, leaving: Leaving) -> None:
    if leaving is Leaving.HALF_CLOSE:
        await stream.send_eof()
        while await stream.receive_some():
            pass
    elif leaving is Leaving.RESET:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@attrs.define(eq=False)
class H2Client:
    """One HTTP/2 connection with prior knowledge, without TLS."""

    _stream: trio.SocketStream
    bodies: dict[int, bytes] = attrs.field(init=False, factory=lambda: defaultdict(bytes))
    ended: set[int] = attrs.field(init=False, factory=set)
    _core: h2.connection.H2Connection = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._core = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._core.initiate_connection()

    async def post(self, asked: Asked) -> int:
        """The id of the stream that will bring the answer."""
        stream = self._core.get_next_available_stream_id()
        data = asked.data
        names = {":method": "POST", ":path": asked.path, ":scheme": "http", ":authority": "localhost"}
        self._core.send_headers(stream, [*names.items(), ("content-length", str(len(data)))])
        self._core.send_data(stream, data, end_stream=True)
        await self._flush()
        return stream

    async def reset(self, stream: int) -> None:
        self._core.reset_stream(stream)
        await self._flush()

    async def go_away(self) -> None:
        self._core.close_connection()
        await self._flush()

    async def read(self) -> None:
        """Takes what comes next. Fails when the connection ends."""
        data = await self._stream.receive_some()
        assert data, "the server ended the connection"
        for event in self._core.receive_data(data):
            match event:
                case h2.events.DataReceived(stream_id=stream, data=body, flow_controlled_length=length):
                    self.bodies[stream] += body
                    self._core.acknowledge_received_data(length, stream)
                case h2.events.StreamEnded(stream_id=stream):
                    self.ended.add(stream)
                case h2.events.StreamReset(stream_id=stream):
                    raise AssertionError(f"stream {stream} was reset")
                case _:
                    pass  # headers, settings and windows are the library's affair
        await self._flush()

    async def _flush(self) -> None:
        await self._stream.send_all(self._core.data_to_send())


async def leave_h2(port: int, visit: Visit, beside: Asked) -> Answer | None:
    """The answer of the request beside the one that is left, where only a stream is reset."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = H2Client(stream)
        left = await client.post(visit.asked)
        kept = await client.post(beside) if visit.leaving is Leaving.RST_STREAM else None
        with trio.move_on_after(visit.patience_s):
            while len(client.bodies[left]) < visit.response_bytes and left not in client.ended:
                await client.read()
        if kept is None:
            await client.go_away()
            return None
        if left not in client.ended:
            await client.reset(left)
        while kept not in client.ended:
            await client.read()
        return read_answer(beside, client.bodies[kept].decode())
