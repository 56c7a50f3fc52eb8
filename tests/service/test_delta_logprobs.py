import pytest

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId, TextId, compose_request_id
from layered_llm.domain.messages.api_text import TextEmitted
from layered_llm.domain.stream import ChoiceDelta, SampledLogprob, TokenLogprob
from layered_llm.service import open_requests
from layered_llm.service.open_requests import OpenRequests
from support.logprobs import columns_of

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
    )


def deltas(*messages: TextEmitted) -> list[ChoiceDelta]:
    table = OpenRequests()
    records = [table.open(request, TextId(0), 0.0) for request in (FIRST, SECOND)]
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


def test_nothing_is_built_for_requests_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[TextEmitted]()
    monkeypatch.setattr(open_requests, "sampled_logprobs", built.append)
    table = OpenRequests()

    assert () == tuple(table.on_text(emitted([1, 2, 3], [[(1, -1.0)], [(2, -1.0)], [(3, -1.0)]]), 1.0))
    assert ([], 2.0) == (built, dict(table.samples())["layered_llm_late_rows_total"])
