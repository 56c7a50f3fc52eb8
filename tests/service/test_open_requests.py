import pytest

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, TextId, compose_request_id
from layered_llm.domain.messages.api_text import Abort, Accepted, Rejected, TextEmitted
from layered_llm.domain.stream import ChoiceDelta, RequestEnded, Usage
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.ended_requests import fate_of
from layered_llm.service.open_requests import OpenRequests, Phase, RequestRecord
from support.metrics import samples_by_name

FIRST, SECOND = (compose_request_id(ApiId(5), counter) for counter in (1, 2))
TEXT = TextId(0)
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
    record = table.open(FIRST, TEXT, 0.0)

    table.on_text(emitted((FIRST, 0, "Hel", (1,), FinishReason.RUNNING), (FIRST, 1, "x", (9,), FinishReason.RUNNING)), 1.0)
    table.on_text(emitted((FIRST, 0, "lo", (2, 3), FinishReason.LENGTH)), 2.0)

    assert (delta(0, "Hello", (1, 2, 3), FinishReason.LENGTH), delta(1, "x", (9,))) == record.take_events()
    assert () == record.take_events()


def test_the_end_comes_once_behind_all_deltas(table: OpenRequests) -> None:
    record = table.open(FIRST, TEXT, 0.0)

    table.on_text(emitted((FIRST, 0, "a", (1,), FinishReason.STOP), ended=(FIRST,)), 1.0)

    assert (delta(0, "a", (1,), FinishReason.STOP), RequestEnded(usage=USAGE, error=None)) == record.take_events()
    assert not record.has_events


def test_rows_are_routed_by_request(table: OpenRequests) -> None:
    first, second = table.open(FIRST, TEXT, 0.0), table.open(SECOND, TEXT, 0.0)

    touched = table.on_text(emitted((SECOND, 0, "b", (1,), FinishReason.RUNNING)), 1.0)

    assert [second] == list(touched)
    assert not first.has_events


def test_closing_an_open_request_owes_one_abort(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 0.0)

    assert Abort(request=FIRST, reason=AbortReason.CLIENT_GONE) == table.close(FIRST, AbortReason.CLIENT_GONE)
    assert table.close(FIRST, AbortReason.CLIENT_GONE) is None
    assert 1.0 == counters(table)['layered_llm_aborts_emitted_total{reason="client_gone"}']


def test_closing_an_ended_request_owes_nothing(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 0.0)
    table.on_text(emitted(ended=(FIRST,)), 1.0)

    assert table.close(FIRST, AbortReason.CLIENT_GONE) is None


def test_closing_a_rejected_request_owes_nothing(table: OpenRequests) -> None:
    record = table.open(FIRST, TEXT, 0.0)
    table.on_verdict(Rejected(request=FIRST, reason=RejectReason.EMPTY_PROMPT, message="empty"))

    assert Phase.REJECTED is record.phase
    assert table.close(FIRST, AbortReason.CLIENT_GONE) is None


def test_closing_a_lost_request_owes_nothing(table: OpenRequests) -> None:
    record = table.open(FIRST, TEXT, 0.0)

    assert [record] == table.lose()
    assert Phase.LOST is record.phase
    assert table.close(FIRST, AbortReason.CLIENT_GONE) is None


def test_only_the_requests_of_a_lost_text_worker_are_lost(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 0.0)
    second = table.open(SECOND, TextId(1), 0.0)

    assert [second] == table.lose([TextId(1)])
    assert 1 == len(table)


def test_what_comes_after_the_owner_left_is_dropped_and_counted(table: OpenRequests) -> None:
    record = table.open(FIRST, TEXT, 0.0)
    table.close(FIRST, AbortReason.CLIENT_GONE)

    table.on_verdict(Accepted(request=FIRST, prompt_tokens=3))
    touched = table.on_text(emitted((FIRST, 0, "late", (1,), FinishReason.STOP), ended=(FIRST,)), 1.0)

    assert [] == list(touched)
    assert not record.has_events
    assert 3.0 == counters(table)["layered_llm_late_rows_total"]


def test_a_second_verdict_is_our_own_fault(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 0.0)
    table.on_verdict(Accepted(request=FIRST, prompt_tokens=3))

    with pytest.raises(InvariantViolated):
        table.on_verdict(Accepted(request=FIRST, prompt_tokens=3))


def test_text_behind_the_finish_of_a_choice_is_our_own_fault(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 0.0)
    table.on_text(emitted((FIRST, 0, "a", (1,), FinishReason.STOP)), 1.0)

    with pytest.raises(InvariantViolated):
        table.on_text(emitted((FIRST, 0, "b", (2,), FinishReason.RUNNING)), 2.0)


def test_time_to_first_token_counts_once_and_gaps_count_each_token(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 10.0)
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
    for counter in range(3):
        request = compose_request_id(ApiId(5), counter)
        table.open(request, TEXT, 0.0)
        table.on_verdict(Accepted(request=request, prompt_tokens=1))
    table.on_text(emitted(ended=(compose_request_id(ApiId(5), 0),)), 1.0)
    table.close(compose_request_id(ApiId(5), 1), AbortReason.SHUTDOWN)
    table.lose()

    values = counters(table)
    outcomes = ("layered_llm_requests_ended_total", "layered_llm_requests_lost_total")
    aborted = sum(value for name, value in values.items() if name.startswith("layered_llm_aborts_emitted_total"))
    assert values["layered_llm_requests_accepted_total"] == sum(values[name] for name in outcomes) + aborted
    assert 0 == len(table)


def accept(table: OpenRequests, request: RequestId, choices: int) -> RequestRecord:
    record = table.open(request, TEXT, 0.0, choices=choices)
    table.on_verdict(Accepted(request=request, prompt_tokens=3))
    return record


def finished(table: OpenRequests) -> dict[str, float]:
    prefix = 'layered_llm_choices_finished_total{reason="'
    return {name.removeprefix(prefix)[:-2]: n for name, n in counters(table).items() if name.startswith(prefix) and n}


def test_each_choice_of_a_request_that_its_owner_left_is_counted_once(table: OpenRequests) -> None:
    record = accept(table, FIRST, 3)
    table.on_text(emitted((FIRST, 1, "x", (1,), FinishReason.STOP)), 1.0)
    record.take_events()

    table.close(FIRST, AbortReason.CLIENT_GONE)
    table.close(FIRST, AbortReason.CLIENT_GONE)

    assert {"stop": 1, "abort": 2} == finished(table)


def test_choices_that_are_lost_with_the_engine_ended_by_an_error(table: OpenRequests) -> None:
    record = accept(table, FIRST, 2)
    table.on_text(emitted((FIRST, 0, "x", (1,), FinishReason.LENGTH)), 1.0)

    table.lose()
    record.take_events()

    assert {"length": 1, "error": 1} == finished(table)


def test_a_request_that_was_never_accepted_has_no_choices_to_count(table: OpenRequests) -> None:
    table.open(FIRST, TEXT, 0.0, choices=2)

    table.close(FIRST, AbortReason.CLIENT_GONE)

    assert {} == finished(table)


def test_an_end_that_its_reader_never_took_is_an_abort(table: OpenRequests) -> None:
    record = accept(table, FIRST, 2)
    table.on_text(emitted((FIRST, 0, "x", (1,), FinishReason.LENGTH)), 1.0)
    record.take_events()
    table.on_text(emitted((FIRST, 1, "x", (1,), FinishReason.LENGTH), ended=(FIRST,)), 1.0)

    record.drop_events()
    record.drop_events()

    assert ({"length": 1, "abort": 1}, False, "abort") == (finished(table), record.has_events, fate_of(record).reason)
