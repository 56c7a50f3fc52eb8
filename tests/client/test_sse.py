from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.client.errors import EventTooLarge
from layered_llm.client.sse import ServerSentEvent, SseParser


def parse(chunks: Iterable[bytes], *, deliver_unfinished: bool = True) -> list[ServerSentEvent]:
    parser = SseParser(deliver_unfinished=deliver_unfinished)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return [*events, *parser.close()]


def datas(stream: bytes, *, deliver_unfinished: bool = False) -> list[str]:
    return [event.data for event in parse([stream], deliver_unfinished=deliver_unfinished)]


def outcome(chunks: Iterable[bytes], max_event_bytes: int) -> list[ServerSentEvent | str]:
    parser = SseParser(max_event_bytes=max_event_bytes)
    seen: list[ServerSentEvent | str] = []
    try:
        for chunk in chunks:
            seen.extend(parser.feed(chunk))
        seen.extend(parser.close())
    except EventTooLarge:
        seen.append("too large")
    return seen


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    return [stream[start:end] for start, end in pairwise([0, *sorted(places), len(stream)])]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_each_line_end_ends_lines_and_events(end: bytes) -> None:
    assert ["a\nb", "c"] == datas(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""]))


def test_mixed_line_ends() -> None:
    assert ["a", "b", "c"] == datas(b"data: a\r\n\ndata: b\n\r\ndata: c\r\r")


def test_event_is_delivered_at_its_cr_without_waiting_for_a_line_feed() -> None:
    parser = SseParser()

    assert (ServerSentEvent(data="a"),) == parser.feed(b"data: a\r\n\r")
    assert () == parser.feed(b"\n")
    assert (ServerSentEvent(data="b"),) == parser.feed(b"data: b\n\n")


def test_one_space_after_the_colon_is_dropped() -> None:
    assert ["a", "a", " a", "a: b"] == datas(b"data:a\n\ndata: a\n\ndata:  a\n\ndata: a: b\n\n")


def test_example_of_the_standard_with_empty_data() -> None:
    assert ["", "\n"] == datas(b"data\n\ndata\ndata\n\ndata:")


def test_example_of_the_standard_with_ids() -> None:
    stream = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n"

    expected = [
        ServerSentEvent(data="first event", last_event_id="1"),
        ServerSentEvent(data="second event", last_event_id=""),
    ]
    assert expected == parse([stream], deliver_unfinished=False)


def test_id_stays_for_later_events() -> None:
    assert ["7", "7"] == [event.last_event_id for event in parse([b"id: 7\ndata: a\n\ndata: b\n\n"])]


def test_id_with_nul_is_ignored() -> None:
    assert ["7"] == [event.last_event_id for event in parse([b"id: 7\nid: 8\x009\ndata: a\n\n"])]


def test_event_type_holds_for_one_event() -> None:
    assert ["error", "message"] == [event.event for event in parse([b"event: error\ndata: a\n\ndata: b\n\n"])]


def test_event_type_without_data_is_dropped() -> None:
    assert [ServerSentEvent(data="b")] == parse([b"event: error\n\ndata: b\n\n"])


def test_comments_and_unknown_fields_are_ignored() -> None:
    assert ["a"] == datas(b": ping\n\n:\ndatum: x\nDATA: x\n data: x\ndata: a\n\n")


def test_leading_byte_order_mark_is_dropped_once() -> None:
    assert ["a"] == datas(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n")


def test_invalid_utf8_becomes_the_replacement_character() -> None:
    assert ["a�b"] == datas(b"data: a\xffb\n\n")


@pytest.mark.parametrize("stream", [b"data: a\n\ndata: b", b"data: a\n\ndata: b\n", b"data: a\n\ndata: b\r"])
def test_unfinished_event_is_delivered_at_close_when_wanted(stream: bytes) -> None:
    assert ["a"] == datas(stream, deliver_unfinished=False)
    assert ["a", "b"] == datas(stream, deliver_unfinished=True)


def test_close_delivers_once() -> None:
    parser = SseParser()
    parser.feed(b"data: a")

    assert (ServerSentEvent(data="a"),) == parser.close()
    assert () == parser.close()


def test_feeding_a_closed_parser_is_a_mistake() -> None:
    parser = SseParser()
    parser.close()

    with pytest.raises(ValueError, match="closed"):
        parser.feed(b"data: a\n\n")


def test_line_without_end_is_bounded() -> None:
    parser = SseParser(max_event_bytes=100)
    parser.feed(b"data: " + b"x" * 94)

    with pytest.raises(EventTooLarge, match="100 bytes"):
        parser.feed(b"x")


def test_event_of_many_lines_is_bounded() -> None:
    parser = SseParser(max_event_bytes=100)

    with pytest.raises(EventTooLarge):
        parser.feed(b"data: x\n" * 15)


def test_comments_between_events_do_not_add_up() -> None:
    parser = SseParser(max_event_bytes=10)

    assert () == parser.feed(b": ping\n\n" * 100)


def test_events_before_one_that_is_too_large_are_delivered() -> None:
    assert [ServerSentEvent(data="a"), "too large"] == outcome([b"data: a\n\ndata: " + b"x" * 20], max_event_bytes=20)


CORPUS = "\ufeff: ö\r\nid: 1\r\revent: é\ndata: 🙂\r\ndata:ñ\n\n\r\ndata\r\rretry: 5\n\ndata: end".encode()


def test_no_split_in_three_parts_changes_the_events() -> None:
    expected = parse([CORPUS])
    splits = ((i, j) for i in range(len(CORPUS) + 1) for j in range(i, len(CORPUS) + 1))

    assert ["🙂\nñ", "", "end"] == [event.data for event in expected]
    assert all(expected == parse(cut(CORPUS, places)) for places in splits)


def test_byte_by_byte_changes_nothing() -> None:
    assert parse([CORPUS]) == parse(cut(CORPUS, range(1, len(CORPUS))))


PIECES = st.sampled_from(
    [
        b"\n",
        b"\r",
        b"\r\n",
        b"data",
        b"data: ",
        b"id: ",
        b"event:",
        b"retry: 1",
        b":",
        b" ",
        b"\xef\xbb\xbf",
        b"\0",
        "é🙂".encode(),
    ]
)
STREAMS = st.lists(PIECES | st.binary(max_size=3), max_size=30).map(b"".join)


@given(stream=STREAMS, places=st.lists(st.integers(0, 200), max_size=8), deliver_unfinished=st.booleans())
def test_no_split_changes_the_events(stream: bytes, places: list[int], deliver_unfinished: bool) -> None:
    chunks = cut(stream, [min(place, len(stream)) for place in places])

    expected = parse([stream], deliver_unfinished=deliver_unfinished)
    assert expected == parse(chunks, deliver_unfinished=deliver_unfinished)


@given(stream=STREAMS, places=st.lists(st.integers(0, 200), max_size=8), limit=st.integers(0, 20))
def test_no_split_changes_where_an_event_becomes_too_large(stream: bytes, places: list[int], limit: int) -> None:
    chunks = cut(stream, [min(place, len(stream)) for place in places])

    assert outcome([stream], limit) == outcome(chunks, limit)


@given(stream=STREAMS)
def test_agrees_with_a_literal_reading_of_the_standard(stream: bytes) -> None:
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    expected, data, kind, last_id = [], "", "", ""
    for line in text.split("\n")[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                expected.append(ServerSentEvent(data=data[:-1], event=kind or "message", last_event_id=last_id))
            data, kind = "", ""
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value

    assert expected == parse([stream], deliver_unfinished=False)
