import pytest

from layered_llm.client.errors import ApiError, FirstTokenTimeout, IdleTimeout, MalformedStream, StreamError, StreamTruncated
from layered_llm.client.stream_core import StreamCore, StreamTimeouts
from support.client_fakes import DONE, chat_chunk, event, usage_chunk

TIMEOUTS = StreamTimeouts(first_token_s=10.0, idle_s=2.0)


def core_with(*pieces: bytes, ended: bool = False) -> StreamCore:
    core = StreamCore(TIMEOUTS)
    for piece in pieces:
        core.receive(piece, waited_s=0.0)
    if ended:
        core.end()
    return core


def texts(core: StreamCore) -> list[str]:
    seen = []
    while chunk := core.next_chunk():
        seen.append(chunk.text)
    return seen


def test_chunks_until_done() -> None:
    core = core_with(event(chat_chunk("a")) + event(chat_chunk("b")) + event(usage_chunk(1, 2)) + DONE)

    assert ["a", "b", ""] == texts(core)
    assert core.is_over


def test_no_chunk_yet_is_not_the_end() -> None:
    core = core_with(b"data: {")

    assert core.next_chunk() is None
    assert not core.is_over


def test_what_follows_done_is_ignored() -> None:
    core = core_with(DONE + event(chat_chunk("a")), ended=True)

    assert [] == texts(core)
    assert core.is_over


def test_done_without_a_blank_line_counts() -> None:
    core = core_with(event(chat_chunk("a")), b"data: [DONE]", ended=True)

    assert ["a"] == texts(core)
    assert core.is_over


def test_end_without_done_is_truncated_after_the_last_chunk() -> None:
    core = core_with(event(chat_chunk("a", finish="stop")), ended=True)

    assert core.next_chunk() is not None
    with pytest.raises(StreamTruncated, match="without"):
        core.next_chunk()


def test_end_in_the_middle_of_a_chunk_is_truncated() -> None:
    core = core_with(event(chat_chunk("a"))[:-10], ended=True)

    with pytest.raises(StreamTruncated, match="middle of a chunk"):
        core.next_chunk()


@pytest.mark.parametrize(
    "data",
    [
        event({"error": {"message": "m", "type": "t", "code": 500}}),
        event({"object": "error", "message": "m", "type": "t", "code": "500"}),
        b"event: error\n" + event({"error": {"message": "m", "type": "t", "code": "500"}}),
    ],
)
def test_error_in_the_stream_comes_after_the_chunks_before_it(data: bytes) -> None:
    core = core_with(event(chat_chunk("a")) + data + DONE)

    assert core.next_chunk() is not None
    with pytest.raises(StreamError) as caught:
        core.next_chunk()
    assert ApiError(message="m", type="t", code="500") == caught.value.error


@pytest.mark.parametrize("data", [b"event: error\ndata: overloaded\n\n", b'event: error\ndata: "overloaded"\n\n'])
def test_error_event_of_any_form_is_an_error(data: bytes) -> None:
    with pytest.raises(StreamError, match="overloaded"):
        core_with(data).next_chunk()


@pytest.mark.parametrize("data", [b"data: hello\n\n", b"data: 3\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
def test_events_that_are_no_chunks_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedStream):
        core_with(data).next_chunk()


def test_waiting_uses_the_first_token_budget() -> None:
    core = StreamCore(TIMEOUTS)
    core.waited(4.0)
    core.receive(b": ping\n\n", waited_s=5.0)

    assert 1.0 == core.budget_s


def test_role_chunk_does_not_end_the_wait_for_the_first_token() -> None:
    core = core_with(event(chat_chunk("", role="assistant")))
    texts(core)
    core.receive(b": ping\n\n", waited_s=10.0)

    with pytest.raises(FirstTokenTimeout, match="10 s"):
        core.next_chunk()


@pytest.mark.parametrize("chunk", [chat_chunk("a"), chat_chunk(reasoning="a"), chat_chunk(finish="stop")])
def test_output_or_finish_starts_the_idle_budget(chunk: object) -> None:
    core = StreamCore(TIMEOUTS)
    core.receive(event(chunk), waited_s=9.0)
    core.next_chunk()

    assert 2.0 == core.budget_s


def test_keep_alives_do_not_refresh_the_idle_budget() -> None:
    core = core_with(event(chat_chunk("a")))
    texts(core)
    core.receive(b": ping\n\n", waited_s=1.5)
    core.receive(b": ping\n\n", waited_s=1.5)

    with pytest.raises(IdleTimeout, match="2 s"):
        core.next_chunk()


def test_events_refresh_the_idle_budget() -> None:
    core = core_with(event(chat_chunk("a")))
    texts(core)
    core.receive(event(chat_chunk("b")), waited_s=1.5)

    assert 2.0 == core.budget_s


def test_late_chunk_is_delivered_rather_than_judged() -> None:
    core = StreamCore(TIMEOUTS)
    core.receive(event(chat_chunk("a")), waited_s=11.0)

    assert ["a"] == texts(core)


def test_no_timeout_no_budget() -> None:
    assert StreamCore(StreamTimeouts(first_token_s=None, idle_s=None)).budget_s is None
