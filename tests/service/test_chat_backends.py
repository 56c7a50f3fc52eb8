from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.messages.supervision import is_quiescent
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.chat.backend import CannotOpen, ContextFull, End, Failed, Finished, Outcome, Piece
from layered_llm.service.chat.embedded_backend import EmbeddedBackend, open_embedded_backend
from layered_llm.service.chat.remote_backend import open_remote_backend
from layered_llm.service.settings.settings import Settings
from support.byte_checkpoint import write_byte_checkpoint
from support.client_fakes import DONE, chat_chunk, event, http_server, send_head, send_json, send_piece, usage_chunk

CONTEXT_TOKENS = 256


def user(text: str) -> tuple[ChatMessage, ...]:
    return (ChatMessage(role="user", content=text),)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("tiny"), context_tokens=CONTEXT_TOKENS)
    return Settings(model=str(model), device="scripted", max_running_requests=1)


async def wait_quiescent(backend: EmbeddedBackend) -> None:
    while not is_quiescent(await backend.client.state()):
        await trio.sleep(0.01)


async def test_embedded_engine_answers_in_pieces_and_counts_their_tokens(settings: Settings) -> None:
    pieces: list[Piece] = []
    async with open_embedded_backend(settings) as backend:
        outcome = await backend.answer(user("Hi"), SamplingParams(max_tokens=8), pieces.append)

    assert Finished(end=End.LENGTH, tokens=8) == outcome
    assert "user\nHi" == "".join(piece.text for piece in pieces)[:7]
    assert 8 == sum(piece.tokens for piece in pieces)


@pytest.mark.parametrize("max_tokens", [None, CONTEXT_TOKENS])
async def test_embedded_engine_says_that_an_answer_filled_the_context(settings: Settings, max_tokens: int | None) -> None:
    async with open_embedded_backend(settings) as backend:
        outcome = await backend.answer(user("Hi" * 100), SamplingParams(max_tokens=max_tokens), lambda _piece: None)

    assert isinstance(outcome, Finished)
    assert End.CONTEXT is outcome.end


async def test_embedded_engine_says_that_there_is_no_room_for_an_answer(settings: Settings) -> None:
    async with open_embedded_backend(settings) as backend:
        outcome = await backend.answer(user("x" * CONTEXT_TOKENS), SamplingParams(max_tokens=None), lambda _piece: None)
        await wait_quiescent(backend)

    assert isinstance(outcome, ContextFull)
    assert str(CONTEXT_TOKENS) in outcome.message


async def test_leaving_an_answer_leaves_nothing_in_the_embedded_engine(settings: Settings) -> None:
    first_piece = trio.Event()

    async with open_embedded_backend(settings) as backend:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.answer, user("Hi"), SamplingParams(max_tokens=None), lambda _piece: first_piece.set())
            await first_piece.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await wait_quiescent(backend)


async def test_embedded_engine_without_a_model_cannot_open(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="no such file or directory"):
        async with open_embedded_backend(Settings(model=str(tmp_path / "missing"), device="scripted")):
            pass


Handler = Callable[[bytes, trio.SocketStream], Awaitable[None]]


def server_that_says(*chunks: dict[str, Any], seen: list[bytes] | None = None) -> Handler:
    async def handle(request: bytes, stream: trio.SocketStream) -> None:
        if seen is not None:
            seen.append(request)
        if b"/models" in request:
            await send_json(stream, {"data": [{"id": "first"}, {"id": "second"}]})
            return
        await send_head(stream)
        for chunk in chunks:
            await send_piece(stream, event(chunk))
        await send_piece(stream, DONE)
        await send_piece(stream, b"")

    return handle


async def ask(handler: Handler, params: SamplingParams, *, model: str | None = None) -> tuple[Outcome, list[Piece]]:
    pieces: list[Piece] = []
    async with http_server(handler) as url, open_remote_backend(url, api_key="secret", model=model) as backend:
        return await backend.answer(user("Hi"), params, pieces.append), pieces


async def test_server_is_asked_for_its_first_model_and_for_nothing_that_was_left_open() -> None:
    seen: list[bytes] = []
    handler = server_that_says(chat_chunk("Hel"), chat_chunk("lo", finish="stop"), usage_chunk(3, 5), seen=seen)

    outcome, pieces = await ask(handler, SamplingParams(temperature=0.5, seed=7, max_tokens=None))

    assert Finished(end=End.STOP, tokens=5) == outcome
    assert [Piece(text="Hel", tokens=1), Piece(text="lo", tokens=1)] == pieces
    assert b'"model":"first","messages":[{"role":"user","content":"Hi"}],"temperature":0.5,"seed":7,"stream":true' in seen[1]
    assert b"Bearer secret" in seen[1]


async def test_server_is_asked_for_the_model_that_was_named() -> None:
    seen: list[bytes] = []

    await ask(server_that_says(chat_chunk(finish="stop"), seen=seen), SamplingParams(max_tokens=None), model="mine")

    assert 1 == len(seen)
    assert b'"model":"mine"' in seen[0]


async def test_reasoning_and_length_of_a_server() -> None:
    handler = server_that_says(chat_chunk(reasoning_content="Hm."), chat_chunk("a", finish="length"))

    outcome, pieces = await ask(handler, SamplingParams(max_tokens=None))

    assert Finished(end=End.LENGTH, tokens=None) == outcome
    assert [Piece(text="", reasoning="Hm.", tokens=1), Piece(text="a", tokens=1)] == pieces


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 8 tokens.", "type": "BadRequestError", "code": 400},
        {"message": "the request exceeds it", "type": "exceed_context_size_error", "code": 400},
    ],
)
async def test_servers_that_say_in_their_ways_that_the_context_is_full(error: dict[str, Any]) -> None:
    outcome, _ = await ask(server_that_says({"error": error}), SamplingParams(max_tokens=None))

    assert ContextFull(error["message"]) == outcome


async def test_failure_of_a_server_is_an_outcome() -> None:
    outcome, _ = await ask(
        server_that_says(chat_chunk("a"), {"error": {"message": "on fire"}}), SamplingParams(max_tokens=None)
    )

    assert Failed("on fire") == outcome


async def test_leaving_an_answer_closes_the_connection_to_the_server() -> None:
    closed = trio.Event()

    async def handle(_request: bytes, stream: trio.SocketStream) -> None:
        await send_head(stream)
        await send_piece(stream, event(chat_chunk("a")))
        assert b"" == await stream.receive_some()
        closed.set()

    async with http_server(handle) as url, open_remote_backend(url, api_key=None, model="m") as backend:
        with trio.CancelScope() as scope:
            await backend.answer(user("Hi"), SamplingParams(max_tokens=None), lambda _piece: scope.cancel())
        with trio.fail_after(5):
            await closed.wait()


@pytest.mark.parametrize("url", ["ftp://example.com", "http://127.0.0.1:9"])
async def test_server_that_is_none_cannot_be_opened(url: str) -> None:
    with pytest.raises(CannotOpen, match=url):
        async with open_remote_backend(url, api_key=None, model=None):
            pass


async def test_a_server_that_wants_a_key_names_the_flag_for_it() -> None:
    async def want_key(_request: bytes, stream: trio.SocketStream) -> None:
        body = b'{"error": {"message": "no key"}}'
        await stream.send_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with http_server(want_key) as url:
        with pytest.raises(CannotOpen, match="HTTP 401: no key; --api-key KEY sends one"):
            async with open_remote_backend(url, api_key=None, model=None):
                pass
