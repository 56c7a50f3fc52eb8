import attrs
import pytest
import trio

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, compose_request_id
from layered_llm.domain.messages.api_text import Abort, Accepted, ApiToText, Rejected, TextEmitted
from layered_llm.domain.messages.supervision import RequestFate
from layered_llm.domain.stream import ChoiceDelta, RequestEnded, Usage
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.engine_client.open_requests import OpenRequests
from layered_llm.service.engine_client.request_stream import Phase, RequestStream
from support.metrics import samples_by_name
from support.request_table import entered

FIRST, SECOND = (compose_request_id(ApiId(5), counter) for counter in (1, 2))
USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=0)

Row = tuple[RequestId, int, str, tuple[int, ...], FinishReason]


def emitted(*rows: Row, ended: tuple[RequestId, ...] = (), error: str | None = None) -> TextEmitted:
    return TextEmitted(
        requests=pack_i64(row[0] for row in rows),
        choices=pack_i32(row[1] for row in rows),
        texts=tuple(row[2] for row in rows),
        token_counts=pack_i32(len(row[3]) for row in rows),
        token_ids=pack_i32(token for row in rows for token in row[3]),
        finish_reasons=pack_i8(row[4] for row in rows),
        matched_stops=(None,) * len(rows),
        ended=pack_i64(ended),
        ended_prompt_tokens=pack_i32(USAGE.prompt_tokens for _ in ended),
        ended_completion_tokens=pack_i32(USAGE.completion_tokens for _ in ended),
        ended_cached_tokens=pack_i32(USAGE.cached_tokens for _ in ended),
        ended_errors=(error,) * len(ended),
    )


def delta(choice: int, text: str, tokens: tuple[int, ...], reason: FinishReason = FinishReason.RUNNING) -> ChoiceDelta:
    return ChoiceDelta(choice=choice, text=text, token_ids=tokens, finish_reason=reason, matched_stop=None)


def counters(table: OpenRequests) -> dict[str, float]:
    return samples_by_name(table.metrics())


@pytest.fixture
def table() -> OpenRequests:
    return OpenRequests()


def test_deltas_of_one_choice_that_nobody_fetched_are_merged(table: OpenRequests) -> None:
    stream = entered(table, FIRST)

    table.on_text(emitted((FIRST, 0, "Hel", (1,), FinishReason.RUNNING), (FIRST, 1, "x", (9,), FinishReason.RUNNING)), 1.0)
    table.on_text(emitted((FIRST, 0, "lo", (2, 3), FinishReason.LENGTH)), 2.0)

    assert (delta(0, "Hello", (1, 2, 3), FinishReason.LENGTH), delta(1, "x", (9,))) == stream.take_events()
    assert () == stream.take_events()


def test_the_end_comes_once_behind_all_deltas(table: OpenRequests) -> None:
    stream = entered(table, FIRST)

    table.on_text(emitted((FIRST, 0, "a", (1,), FinishReason.STOP), ended=(FIRST,)), 1.0)

    assert (delta(0, "a", (1,), FinishReason.STOP), RequestEnded(usage=USAGE, error=None)) == stream.take_events()
    assert () == stream.take_events()


def test_rows_are_routed_by_request(table: OpenRequests) -> None:
    first, second = entered(table, FIRST), entered(table, SECOND)

    table.on_text(emitted((SECOND, 0, "b", (1,), FinishReason.RUNNING)), 1.0)

    assert ((), (delta(0, "b", (1,)),)) == (first.take_events(), second.take_events())
    assert (False, True) == (first.news.is_set(), second.news.is_set())


def owed(stream: RequestStream) -> tuple[int, int]:
    """Aborts that wait to be sent, and slots that are kept for one, where nothing else was opened."""
    return stream.connection.outbox.pending, stream.connection.outbox.reserved


def test_closing_an_open_request_owes_one_abort(table: OpenRequests) -> None:
    stream = entered(table, FIRST)

    assert (0, 1) == owed(stream)
    stream.close(AbortReason.CLIENT_GONE)
    stream.close(AbortReason.CLIENT_GONE)

    assert (1, 0) == owed(stream)
    assert 1.0 == counters(table)['layered_llm_aborts_emitted_total{reason="client_gone"}']


def test_closing_an_ended_request_owes_nothing(table: OpenRequests) -> None:
    stream = entered(table, FIRST)
    table.on_text(emitted(ended=(FIRST,)), 1.0)
    stream.close(AbortReason.CLIENT_GONE)

    assert (Phase.ENDED, (0, 0)) == (stream.phase, owed(stream))


def test_closing_a_rejected_request_owes_nothing(table: OpenRequests) -> None:
    stream = entered(table, FIRST)
    table.on_verdict(Rejected(request=FIRST, reason=RejectReason.EMPTY_PROMPT, message="empty"))
    stream.close(AbortReason.CLIENT_GONE)

    assert (Phase.REJECTED, (0, 0)) == (stream.phase, owed(stream))


def test_closing_a_lost_request_owes_nothing(table: OpenRequests) -> None:
    stream = entered(table, FIRST)
    table.lose([stream.connection])
    stream.close(AbortReason.CLIENT_GONE)

    assert (Phase.LOST, (0, 0)) == (stream.phase, owed(stream))


def test_only_the_requests_of_a_lost_connection_are_lost(table: OpenRequests) -> None:
    """Two workers of one index are of two generations."""
    first, second = entered(table, FIRST), entered(table, SECOND)

    table.lose([second.connection])

    assert ([first], True) == (list(table.streams.values()), second.is_over)


def test_what_comes_after_the_owner_left_is_dropped_and_counted(table: OpenRequests) -> None:
    stream = entered(table, FIRST)
    stream.close(AbortReason.CLIENT_GONE)

    table.on_verdict(Accepted(request=FIRST, prompt_tokens=3))
    table.on_text(emitted((FIRST, 0, "late", (1,), FinishReason.STOP), ended=(FIRST,)), 1.0)

    assert () == stream.take_events()
    assert 3.0 == counters(table)["layered_llm_late_rows_total"]


def test_a_second_verdict_is_our_own_fault(table: OpenRequests) -> None:
    entered(table, FIRST)
    table.on_verdict(Accepted(request=FIRST, prompt_tokens=3))

    with pytest.raises(InvariantViolated):
        table.on_verdict(Accepted(request=FIRST, prompt_tokens=3))


def test_text_behind_the_finish_of_a_choice_is_our_own_fault(table: OpenRequests) -> None:
    entered(table, FIRST)
    table.on_text(emitted((FIRST, 0, "a", (1,), FinishReason.STOP)), 1.0)

    with pytest.raises(InvariantViolated):
        table.on_text(emitted((FIRST, 0, "b", (2,), FinishReason.RUNNING)), 2.0)


def test_time_to_first_token_counts_once_and_gaps_count_each_token(table: OpenRequests) -> None:
    entered(table, FIRST, now_s=10.0)
    table.on_text(emitted((FIRST, 0, "a", (1,), FinishReason.RUNNING)), 10.5)
    table.on_text(emitted((FIRST, 0, "bc", (2, 3), FinishReason.RUNNING)), 10.7)

    values = counters(table)
    assert (1.0, 0.5) == (
        values["layered_llm_time_to_first_token_seconds_count"],
        values["layered_llm_time_to_first_token_seconds_sum"],
    )
    assert 2.0 == values["layered_llm_inter_token_latency_seconds_count"]
    assert pytest.approx(0.2) == values["layered_llm_inter_token_latency_seconds_sum"]


def test_every_accepted_request_is_ended_aborted_or_lost(table: OpenRequests) -> None:
    streams = list[RequestStream]()
    for counter in range(3):
        request = compose_request_id(ApiId(5), counter)
        streams.append(accept(table, request, 1))
    table.on_text(emitted(ended=(streams[0].request,)), 1.0)
    streams[1].close(AbortReason.SHUTDOWN)
    table.lose([streams[2].connection])

    values = counters(table)
    outcomes = ("layered_llm_requests_ended_total", "layered_llm_requests_lost_total")
    aborted = sum(value for name, value in values.items() if name.startswith("layered_llm_aborts_emitted_total"))
    assert values["layered_llm_requests_accepted_total"] == sum(values[name] for name in outcomes) + aborted
    assert 0 == len(table.streams)


def accept(table: OpenRequests, request: RequestId, choices: int) -> RequestStream:
    stream = entered(table, request, choices=choices)
    table.on_verdict(Accepted(request=request, prompt_tokens=3))
    return stream


def finished(table: OpenRequests) -> dict[str, float]:
    prefix = 'layered_llm_choices_finished_total{reason="'
    return {name.removeprefix(prefix)[:-2]: n for name, n in counters(table).items() if name.startswith(prefix) and n}


def test_each_choice_of_a_request_that_its_owner_left_is_counted_once(table: OpenRequests) -> None:
    stream = accept(table, FIRST, 3)
    table.on_text(emitted((FIRST, 1, "x", (1,), FinishReason.STOP)), 1.0)
    stream.take_events()

    stream.close(AbortReason.CLIENT_GONE)
    stream.close(AbortReason.CLIENT_GONE)

    assert {"stop": 1, "abort": 2} == finished(table)


def test_choices_that_are_lost_with_the_engine_ended_by_an_error(table: OpenRequests) -> None:
    stream = accept(table, FIRST, 2)
    table.on_text(emitted((FIRST, 0, "x", (1,), FinishReason.LENGTH)), 1.0)

    table.lose([stream.connection])
    stream.take_events()

    assert {"length": 1, "error": 1} == finished(table)


def test_a_request_that_was_never_accepted_has_no_choices_to_count(table: OpenRequests) -> None:
    entered(table, FIRST, choices=2).close(AbortReason.CLIENT_GONE)

    assert {} == finished(table)


def test_an_end_that_its_reader_never_took_is_an_abort(table: OpenRequests) -> None:
    stream = accept(table, FIRST, 2)
    table.on_text(emitted((FIRST, 0, "x", (1,), FinishReason.LENGTH)), 1.0)
    stream.take_events()
    table.on_text(emitted((FIRST, 1, "x", (1,), FinishReason.LENGTH), ended=(FIRST,)), 1.0)

    stream.close(AbortReason.CLIENT_GONE)
    stream.close(AbortReason.CLIENT_GONE)

    assert ({"length": 1, "abort": 1}, RequestFate(reason="abort")) == (finished(table), stream.fate)
    assert () == stream.take_events()


def test_what_comes_for_an_earlier_incarnation_is_dropped_and_counted(table: OpenRequests) -> None:
    stream = entered(table, FIRST)
    stream.incarnation = 1

    table.on_verdict(Rejected(request=FIRST, reason=RejectReason.QUEUE_FULL, message="full"))
    table.on_text(emitted((FIRST, 0, "late", (1,), FinishReason.STOP), ended=(FIRST,)), 1.0)

    assert (Phase.SUBMITTED, ()) == (stream.phase, stream.take_events())
    assert 3.0 == counters(table)["layered_llm_late_rows_total"]

    table.on_verdict(Accepted(request=FIRST, prompt_tokens=3, incarnation=1))
    table.on_text(attrs.evolve(emitted((FIRST, 0, "own", (1,), FinishReason.STOP)), incarnation=1), 1.0)
    assert (delta(0, "own", (1,), FinishReason.STOP),) == stream.take_events()


async def test_an_abort_names_the_incarnation_that_is_left(table: OpenRequests) -> None:
    stream = entered(table, FIRST)
    stream.incarnation = 2

    stream.close(AbortReason.CLIENT_GONE)

    sent = list[ApiToText]()
    await stream.connection.outbox.drain(KeepingLink(sent))
    assert [Abort(request=FIRST, reason=AbortReason.CLIENT_GONE, incarnation=2)] == sent


@attrs.define
class KeepingLink:
    """Keeps what is sent."""

    _sent: list[ApiToText]

    async def send(self, message: ApiToText) -> None:
        await trio.lowlevel.checkpoint()
        self._sent.append(message)
