from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.domain import stream
from layered_llm.domain.columns import pack_f32, pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, compose_request_id
from layered_llm.domain.messages.api_text import TextEmitted
from layered_llm.domain.stream import (
    ChoiceDelta,
    LogprobRun,
    RequestEnded,
    SampledLogprob,
    TokenLogprob,
    Usage,
    logprob_entries,
)
from layered_llm.service.engine_client import open_requests, request_stream
from layered_llm.service.engine_client.open_requests import OpenRequests
from support.logprobs import columns_of
from support.metrics import samples_by_name
from support.request_table import entered

END = RequestEnded(usage=Usage(prompt_tokens=1, completion_tokens=5, cached_tokens=0), error=None)
FIRST, SECOND = (compose_request_id(ApiId(5), counter) for counter in (1, 2))


def sampled(token_id: int, logprob: float, *top: tuple[int, float]) -> SampledLogprob:
    return SampledLogprob(
        token_id=token_id,
        token=name(token_id),
        logprob=logprob,
        top=tuple(TokenLogprob(token_id=other, token=name(other), logprob=likely) for other, likely in top),
    )


def name(token_id: int) -> bytes:
    return bytes((token_id,))


def emitted(token_ids: list[int], rows: list[list[tuple[int, float]]]) -> TextEmitted:
    """The first two tokens are choice 0's of the first request, the others the second request's."""
    return TextEmitted(
        requests=pack_i64([FIRST, SECOND]),
        choices=pack_i32([0, 0]),
        texts=("a", "b"),
        token_counts=pack_i32([2, len(token_ids) - 2]),
        token_ids=pack_i32(token_ids),
        finish_reasons=pack_i8([0, 0]),
        matched_stops=(None, None),
        ended=b"",
        ended_prompt_tokens=b"",
        ended_completion_tokens=b"",
        ended_cached_tokens=b"",
        ended_errors=(),
        logprobs=columns_of(rows),
        logprob_tokens=tuple(name(token) for row in rows for token, _ in row),
        text_offsets=bytes(4 * len(rows)) if any(rows) else b"",
    )


def deltas(*messages: TextEmitted) -> list[ChoiceDelta]:
    table = OpenRequests()
    records = [entered(table, request) for request in (FIRST, SECOND)]
    for message in messages:
        table.on_text(message, 1.0)
    return [event for record in records for event in record.take_events() if isinstance(event, ChoiceDelta)]


def test_each_delta_has_the_logprobs_of_its_tokens() -> None:
    first, second = deltas(emitted([4, 5, 6], [[(4, -1.0), (9, -0.5), (4, -1.0)], [(5, -2.0), (5, -2.0)], [(6, -3.0)]]))
    assert (sampled(4, -1.0, (9, -0.5), (4, -1.0)), sampled(5, -2.0, (5, -2.0))) == first.logprobs
    assert (sampled(6, -3.0),) == second.logprobs


def test_a_request_that_wants_none_has_none_beside_one_that_does() -> None:
    first, second = deltas(emitted([4, 5, 6], [[], [], [(6, -3.0)]]))
    assert ((), (sampled(6, -3.0),)) == (first.logprobs, second.logprobs)


def test_a_message_without_any_gives_none() -> None:
    assert [(), ()] == [delta.logprobs for delta in deltas(emitted([4, 5, 6], [[], [], []]))]


def test_logprobs_that_nobody_fetched_are_merged_like_tokens() -> None:
    message = emitted([4, 5, 6], [[(4, -1.0)], [(5, -2.0)], []])
    first, second = deltas(message, message)
    assert (4, 5, 4, 5) == first.token_ids == tuple(each.token_id for each in first.logprobs)
    assert ((6, 6), ()) == (second.token_ids, second.logprobs)
    assert FinishReason.RUNNING is first.finish_reason


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A choice for each delta that is made, as long as the test runs."""
    made = list[int]()

    def noted(**fields: Any) -> ChoiceDelta:
        made.append(fields["choice"])
        return ChoiceDelta(**fields)

    monkeypatch.setattr(open_requests, "ChoiceDelta", noted)
    return made


def test_nothing_is_built_for_requests_that_are_gone(built: list[int]) -> None:
    table = OpenRequests()

    table.on_text(emitted([1, 2, 3], [[(1, -1.0)], [(2, -1.0)], [(3, -1.0)]]), 1.0)

    assert ([], 2.0) == (built, samples_by_name(table.metrics())["layered_llm_late_rows_total"])


def test_nothing_is_built_for_a_request_that_is_gone_beside_one_that_is_open(built: list[int]) -> None:
    table = OpenRequests()
    record = entered(table, SECOND)

    table.on_text(emitted([1, 2, 3], [[(1, -1.0)], [(2, -1.0)], [(3, -1.0)]]), 1.0)

    assert ([0], 1.0) == (built, samples_by_name(table.metrics())["layered_llm_late_rows_total"])
    (delta,) = record.take_events()
    assert isinstance(delta, ChoiceDelta)
    assert (sampled(3, -1.0),) == delta.logprobs


def test_no_object_is_made_of_a_log_probability_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[object]()
    monkeypatch.setattr(stream, "TokenLogprob", made.append)
    monkeypatch.setattr(stream, "SampledLogprob", made.append)
    message = emitted([4, 5, 6], [[(4, -1.0), (9, -0.5)], [(5, -2.0)], [(6, -3.0)]])
    first, second = deltas(*[message] * 10)
    assert ([], 30, 10) == (made, logprob_entries(first.logprobs), len(second.logprobs))


def test_what_waits_is_copied_as_often_as_its_logarithm_says(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = list[int]()
    merged = stream.merged

    def counted(parts: Sequence[ChoiceDelta]) -> ChoiceDelta:
        copied.append(sum(len(part.token_ids) for part in parts) if len(parts) > 1 else 0)
        return merged(parts)

    monkeypatch.setattr(request_stream, "merged", counted)
    table = OpenRequests()
    record = entered(table, SECOND)
    message = emitted([1, 2, 3], [[], [], [(3, -1.0)]])
    for _ in range(4096):
        table.on_text(message, 1.0)
    (delta,) = record.take_events()

    assert isinstance(delta, ChoiceDelta)
    assert ((3,) * 4096, 4096, "b" * 4096) == (delta.token_ids, len(delta.logprobs), delta.text)
    assert 4096 * 12 >= sum(copied)


def test_a_reader_is_given_much_in_parts_and_the_end_after_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_stream, "MOST_BYTES_AT_ONCE", 100)
    table = OpenRequests()
    record = entered(table, FIRST, choices=3)
    for choice in (0, 1, 2, 0):
        record.add_delta(plain(choice))
    record.ended, record.has_unread_end = END, True

    parts = [record.take_events() for _ in range(2)]

    assert [[(0, 2), (1, 1)], [(2, 1)]] == [
        [(each.choice, len(each.token_ids)) for each in part if isinstance(each, ChoiceDelta)] for part in parts
    ]
    assert END == parts[1][-1]


def plain(choice: int) -> ChoiceDelta:
    return ChoiceDelta(choice=choice, text="x", token_ids=(7,), finish_reason=FinishReason.RUNNING, matched_stop=None)


@attrs.define
class Room:
    """A backlog that has room for so many bytes."""

    left: int

    def take(self, count: int) -> object | None:
        if count > self.left:
            return "full"
        self.left -= count
        return None

    def give_back(self, count: int) -> None:
        self.left += count


def test_what_nobody_fetches_takes_room_until_it_is_fetched() -> None:
    table, room = OpenRequests(), Room(1000)
    record = entered(table, FIRST)
    record.backlog = room
    for _ in range(3):
        record.add_delta(plain(0))
    waiting = room.left
    record.take_events()
    assert (1000 - 2 * 44, 1000, False) == (waiting, room.left, record.is_over_backlog)


def test_what_nobody_fetches_any_more_takes_no_room() -> None:
    room = Room(1000)
    record = entered(OpenRequests(), FIRST)
    record.backlog = room
    for _ in range(3):
        record.add_delta(plain(0))
    record.close(AbortReason.CLIENT_GONE)
    assert room.left == 1000


def test_a_reader_that_fetches_in_time_takes_no_room() -> None:
    room = Room(0)
    record = entered(OpenRequests(), FIRST)
    record.backlog = room
    for _ in range(3):
        record.add_delta(plain(0))
        record.take_events()
    assert record.is_over_backlog is False


def test_what_is_said_of_a_prompt_takes_room_with_each_choice_that_waits() -> None:
    table, room = OpenRequests(), Room(1000)
    record = entered(table, FIRST, choices=2)
    record.backlog = room
    for choice in range(2):
        record.add_delta(attrs.evolve(plain(choice), prompt_logprobs=(sampled(7, -1.0),) * 5))
    waiting = room.left
    record.take_events()

    assert (1000 - 2 * 5 * 64, 1000) == (waiting, room.left)


def test_what_does_not_fit_says_so_and_is_not_lost() -> None:
    record = entered(OpenRequests(), FIRST)
    record.backlog = Room(50)
    for _ in range(3):
        record.add_delta(plain(0))
    assert record.is_over_backlog is True
    (delta,) = record.take_events()
    assert isinstance(delta, ChoiceDelta)
    assert delta.token_ids == (7, 7, 7)


@given(
    tokens=st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=4), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=4),
)
def test_a_run_is_the_tokens_that_it_was_made_of_however_it_is_cut_and_joined(tokens: list[list[int]], cuts: list[int]) -> None:
    flat = [token for entries in tokens for token in entries]
    run = LogprobRun(
        [len(entries) for entries in tokens],
        pack_i32(flat),
        pack_f32([-0.5] * len(flat)),
        tuple(map(name, flat)),
        ranks=list(range(len(tokens))),
        offsets=[10 * place for place in range(len(tokens))],
    )
    places = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    parts = [run[first:behind] for first, behind in pairwise(places)]
    expected = tuple(
        attrs.evolve(sampled(own, -0.5, *((other, -0.5) for other in top)), rank=rank or None, text_offset=10 * rank)
        for rank, (own, *top) in enumerate(tokens)
    )
    assert expected == tuple(run) == tuple(LogprobRun.joined(parts)) == tuple(run[place] for place in range(len(run)))
    assert (len(flat), len(tokens)) == (run.entry_count, len(run))
