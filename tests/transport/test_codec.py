import types
import typing
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages import api_text, scheduler_runtime, supervision, text_scheduler
from layered_llm.domain.messages.api_text import Abort, Accepted, Rejected, Submit, TextToApi
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.verdicts import RejectReason
from layered_llm.transport.codec import Codec, WireError
from layered_llm.transport.link_specs import (
    API_SUPERVISOR,
    API_TEXT,
    ENGINE_SUPERVISOR,
    SCHEDULER_RUNTIME,
    TEXT_SCHEDULER,
    Tags,
)
from support.transport_strategies import MESSAGES

LINKS: dict[str, tuple[Tags[Any], Any]] = {
    "api→text": (API_TEXT.from_connected, api_text.ApiToText),
    "text→api": (API_TEXT.from_bound, api_text.TextToApi),
    "text→scheduler": (TEXT_SCHEDULER.from_connected, text_scheduler.TextToScheduler),
    "scheduler→text": (TEXT_SCHEDULER.from_bound, text_scheduler.SchedulerToText),
    "scheduler→runtime": (SCHEDULER_RUNTIME.from_bound, scheduler_runtime.SchedulerToRuntime),
    "runtime→scheduler": (SCHEDULER_RUNTIME.from_connected, scheduler_runtime.RuntimeToScheduler),
    "api→supervisor": (API_SUPERVISOR.from_connected, supervision.ApiToSupervisor),
    "supervisor→api": (API_SUPERVISOR.from_bound, supervision.SupervisorToApi),
    "engine→supervisor": (ENGINE_SUPERVISOR.from_connected, supervision.EngineToSupervisor),
    "supervisor→engine": (ENGINE_SUPERVISOR.from_bound, supervision.SupervisorToEngine),
}
TAGGED = [(link, tag) for link, (table, _) in LINKS.items() for tag in table]


def members(union: Any) -> list[type]:
    return list(typing.get_args(union)) if isinstance(union, types.UnionType) else [union]


def loopback(table: Tags[Any]) -> Codec[Any, Any]:
    return Codec(outbound=table, inbound=table)


def decoded(*frames: bytes) -> TextToApi:
    return Codec(outbound=API_TEXT.from_connected, inbound=API_TEXT.from_bound).decode(frames)


@pytest.mark.parametrize("link", LINKS)
def test_table_covers_exactly_the_messages_of_its_link_once(link: str) -> None:
    table, union = LINKS[link]

    by_name = sorted(message_class.__name__ for message_class in table.values())
    assert sorted(member.__name__ for member in members(union)) == by_name


@pytest.mark.parametrize("link", LINKS)
def test_tags_have_one_byte(link: str) -> None:
    table, _ = LINKS[link]

    assert {1} == {len(tag) for tag in table}


@pytest.mark.parametrize(("link", "tag"), TAGGED)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_message_comes_back_equal(link: str, tag: bytes, data: st.DataObject) -> None:
    table, _ = LINKS[link]
    message = data.draw(MESSAGES[table[tag]])
    end = loopback(table)

    frames = end.encode(message)

    assert tag == frames[0]
    assert message == end.decode(frames)


@st.composite
def mutated(draw: st.DrawFn, body: bytes) -> bytes:
    """`body` with a few bytes replaced, inserted or removed, or cut off."""
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(changed)))
        match draw(st.sampled_from(["replace", "insert", "remove", "cut"])):
            case "replace" if at < len(changed):
                changed[at] = draw(st.integers(0, 255))
            case "insert":
                changed[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "remove":
                del changed[at : at + draw(st.integers(1, 9))]
            case _:
                del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize(("link", "tag"), TAGGED)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_mutated_bytes_are_a_valid_message_or_a_wire_error(link: str, tag: bytes, data: st.DataObject) -> None:
    table, _ = LINKS[link]
    end = loopback(table)
    _, body = end.encode(data.draw(MESSAGES[table[tag]]))

    try:
        message = end.decode((tag, data.draw(mutated(body))))
    except WireError:
        return
    assert isinstance(message, table[tag])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(frames=st.lists(st.binary(max_size=40), max_size=4))
def test_random_frames_are_a_wire_error(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decoded(*frames)


@pytest.mark.parametrize("frame_count", [0, 1, 3, 4])
def test_wrong_frame_count_is_a_wire_error(frame_count: int) -> None:
    with pytest.raises(WireError, match=f"{frame_count} frames"):
        decoded(*[b"a"] * frame_count)


@pytest.mark.parametrize("tag", [b"", b"S", b"aa", b"\x00" * 10_000])
def test_tag_of_no_message_on_this_link_is_a_wire_error(tag: bytes) -> None:
    with pytest.raises(WireError, match="unknown tag"):
        decoded(tag, b"\x80")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x82\xa7request\xa11\xadprompt_tokens\x01", id="text for a number"),
        pytest.param(b"\x82\xa7request\xc3\xadprompt_tokens\x01", id="true for a number"),
        pytest.param(b"\x82\xa7request\xcb\x3f\xf0\0\0\0\0\0\0\xadprompt_tokens\x01", id="float for a number"),
        pytest.param(b"\x81\xa7request\x01", id="missing field"),
        pytest.param(b"\x82\xa7request\x01\xadprompt_tokens\x01\x00", id="trailing byte"),
        pytest.param(b"\x82\xa7request\x01\xadprompt_tokens", id="truncated"),
        pytest.param(b"\x81\xa7request\xdf\xff\xff\xff\xff", id="length beyond the end"),
        pytest.param(b"\x81\xa1z" + b"\x91" * 90_000, id="nesting too deep in an unknown field"),
        pytest.param(b"\xa1\xff", id="not UTF-8"),
        pytest.param(b"", id="empty"),
    ],
)
def test_malformed_body_is_a_wire_error(body: bytes) -> None:
    with pytest.raises(WireError):
        decoded(b"a", body)


def test_columns_of_unequal_length_are_a_wire_error() -> None:
    end = loopback(TEXT_SCHEDULER.from_bound)
    finished = text_scheduler.RequestsFinished(requests=bytes(8), choices=bytes(4), reasons=bytes(1), output_tokens=bytes(4))
    tag, body = end.encode(finished)

    with pytest.raises(WireError, match="unequal"):
        end.decode((tag, body.replace(b"\xc4\x01\0", b"\xc4\x02\0\0")))


def test_parameter_out_of_range_is_a_wire_error() -> None:
    end = loopback(API_TEXT.from_connected)
    submit = Submit(request=RequestId(1), prompt=Prompt.of_text("a"), params=SamplingParams(n=2), seed=1)
    tag, body = end.encode(submit)

    with pytest.raises(WireError, match="n must be between"):
        end.decode((tag, body.replace(b"\xa1n\x02", b"\xa1n\x00")))


def test_body_above_the_limit_is_a_wire_error() -> None:
    end: Codec[Any, Any] = Codec(outbound=API_TEXT.from_bound, inbound=API_TEXT.from_bound, max_body_bytes=10)

    with pytest.raises(WireError, match="a body of 11 bytes"):
        end.decode((b"a", bytes(11)))


def test_body_above_the_limit_is_not_sent() -> None:
    end: Codec[Any, Any] = Codec(outbound=API_TEXT.from_bound, inbound=API_TEXT.from_bound, max_body_bytes=10)

    with pytest.raises(InvariantViolated, match="at most 10"):
        end.encode(Accepted(request=RequestId(1), prompt_tokens=1))


def test_message_of_another_link_is_not_sent() -> None:
    end: Codec[Any, Any] = Codec(outbound=API_TEXT.from_bound, inbound=API_TEXT.from_connected)

    with pytest.raises(InvariantViolated, match="Abort is no message of this link"):
        end.encode(Abort(request=RequestId(1), reason=AbortReason.TIMEOUT))


def test_text_that_is_no_unicode_is_not_sent() -> None:
    rejected = Rejected(request=RequestId(1), reason=RejectReason.TEMPLATE_ERROR, message="\ud800")

    with pytest.raises(InvariantViolated, match="surrogates"):
        loopback(API_TEXT.from_bound).encode(rejected)


def test_every_strategy_belongs_to_a_link() -> None:
    on_links = {message_class for table, _ in LINKS.values() for message_class in table.values()}

    assert on_links == set(MESSAGES)
    assert all(attrs.has(message_class) for message_class in MESSAGES)
