import pytest

from layered_llm.domain.columns import unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import ApiId, RequestId, compose_request_id
from layered_llm.domain.messages.api_text import Accepted, Rejected, Submit
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.text_scheduler import AbortRequest, Queued, Refused
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.verdicts import RefuseReason, RejectReason
from layered_llm.text.core import MOST_DEAD_APIS, Outgoing
from support.text_core import API, OTHER_API, ChoiceView, CoreBench, RequestView

PROMPT = Prompt.of_text("hello")
ABORT, LENGTH, STOP = FinishReason.ABORT, FinishReason.LENGTH, FinishReason.STOP
GONE = AbortReason.CLIENT_GONE


def aborts(bench: CoreBench) -> tuple[int, int, int]:
    """(handled here, forwarded, late)"""
    statistics = bench.core.statistics()
    return statistics.counters.aborts_handled, statistics.counters.aborts_forwarded, statistics.counters.aborts_late


def untold(choices: int = 1) -> RequestView:
    return RequestView([ChoiceView() for _ in range(choices)])


def test_an_abort_before_the_preparation_is_done_leaves_nothing() -> None:
    bench = CoreBench.of()
    preparation = bench.begin(PROMPT)
    bench.abort(preparation.request)
    bench.assert_quiescent()
    bench.take(bench.core.prepared(preparation.request, preparation.run()))
    assert ([], untold(), (1, 0, 0)) == (bench.orders, bench.views[preparation.request], aborts(bench))
    bench.assert_quiescent()


def test_an_abort_before_a_rejection_silences_it() -> None:
    bench = CoreBench.of()
    preparation = bench.begin(Prompt.of_text(""))
    outcome = preparation.run()
    bench.abort(preparation.request)
    bench.take(bench.core.prepared(preparation.request, outcome))
    assert untold() == bench.views[preparation.request]
    bench.assert_quiescent()


def test_an_abort_behind_a_rejection_is_late() -> None:
    bench = CoreBench.of()
    request = bench.admit(Prompt.of_text(""))
    bench.abort(request)
    verdict = bench.views[request].verdict
    assert isinstance(verdict, Rejected)
    assert (RejectReason.EMPTY_PROMPT, (0, 0, 1)) == (verdict.reason, aborts(bench))
    bench.assert_quiescent()


def test_an_abort_between_admit_and_queued_silences_the_verdict() -> None:
    bench = CoreBench.of()
    request = bench.admit()
    bench.abort(request)
    bench.hear(Queued(request=request))
    bench.finish((request, 0, ABORT, 0))
    assert [AbortRequest(request=request, reason=GONE)] == bench.aborts
    assert (untold(), (0, 1, 0)) == (bench.views[request], aborts(bench))
    bench.assert_quiescent()


def test_an_abort_between_admit_and_refused_silences_the_verdict() -> None:
    bench = CoreBench.of()
    request = bench.admit()
    bench.abort(request)
    bench.hear(Refused(request=request, reason=RefuseReason.QUEUE_FULL, limit=1, actual=1))
    assert untold() == bench.views[request]
    bench.assert_quiescent()


def test_an_abort_of_a_running_request_drops_what_still_comes() -> None:
    bench = CoreBench.of()
    request = bench.open(n=2)
    bench.tokens((request, 0, 0, 1), (request, 1, 0, 1))
    told = [list(choice.pushes) for choice in bench.views[request].choices]
    bench.abort(request)
    bench.tokens((request, 0, 1, 1), (request, 1, 1, 1))
    bench.finish((request, 0, LENGTH, 2))
    assert 1 == bench.core.statistics().open_requests
    bench.finish((request, 1, ABORT, 2))
    view = bench.views[request]
    assert (told, None) == ([choice.pushes for choice in view.choices], view.usage)
    assert [AbortRequest(request=request, reason=GONE)] == bench.aborts
    assert [1, 2] == bench.credits
    bench.assert_quiescent()


def test_an_abort_behind_the_end_of_some_choices_covers_the_rest() -> None:
    bench = CoreBench.of()
    request = bench.open(n=2, stop=('"',))
    bench.tokens((request, 0, 0, 1), (request, 1, 0, 2))
    bench.abort(request)
    bench.finish((request, 0, STOP, 1), (request, 1, ABORT, 1))
    assert ([STOP, FinishReason.RUNNING], (0, 1, 0)) == (
        [choice.reason for choice in bench.views[request].choices],
        aborts(bench),
    )
    bench.assert_quiescent()


def test_an_abort_behind_a_stop_string_is_late() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=('"',))
    bench.stream(request, [1])
    assert STOP == bench.views[request].only.reason
    bench.abort(request)
    bench.finish((request, 0, STOP, 1))
    assert ([], (0, 0, 1)) == (bench.aborts, aborts(bench))
    bench.assert_quiescent()


def test_an_abort_behind_the_end_is_late() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.stream(request, [1])
    bench.finish((request, 0, LENGTH, 1))
    bench.abort(request)
    assert ([], (0, 0, 1)) == (bench.aborts, aborts(bench))
    bench.assert_quiescent()


def test_two_aborts_are_one_and_a_late_one() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.abort(request)
    bench.abort(request)
    bench.finish((request, 0, ABORT, 0))
    bench.abort(request)
    assert (1, (0, 1, 2)) == (len(bench.aborts), aborts(bench))
    bench.assert_quiescent()


def test_an_abort_of_an_unknown_request_is_late() -> None:
    bench = CoreBench.of()
    bench.abort(compose_request_id(API, 99))
    assert ([], (0, 0, 1)) == (bench.orders, aborts(bench))


def test_an_abort_that_crosses_the_end_is_told_to_the_scheduler_and_ends_with_its_word() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.stream(request, [1])
    bench.abort(request)
    bench.finish((request, 0, LENGTH, 1))
    assert (None, (0, 1, 0)) == (bench.views[request].usage, aborts(bench))
    bench.assert_quiescent()


def test_a_refusal_is_told_in_a_sentence_with_both_numbers() -> None:
    for reason in RefuseReason:
        bench = CoreBench.of()
        request = bench.admit()
        bench.hear(Refused(request=request, reason=reason, limit=111, actual=222))
        verdict = bench.views[request].verdict
        assert isinstance(verdict, Rejected)
        assert RejectReason(reason) is verdict.reason
        assert verdict.message.endswith(".")
        assert "111" in verdict.message
        assert "222" in verdict.message
        bench.assert_quiescent()


def test_an_id_may_be_submitted_once() -> None:
    bench = CoreBench.of()
    for request in (bench.begin(PROMPT).request, bench.admit()):
        with pytest.raises(InvariantViolated):
            bench.core.submit(Submit(request=request, prompt=PROMPT, params=SamplingParams(), seed=1))


def in_every_phase(bench: CoreBench) -> dict[str, RequestId]:
    """One request of API in each phase, and a running one of OTHER_API."""
    requests = {
        "preparing": bench.begin(PROMPT).request,
        "admitted": bench.admit(),
        "queued": bench.open(),
        "running": bench.open(n=2),
        "stopped": bench.open(stop=('"',)),
        "aborted": bench.open(),
        "other": bench.open(api=OTHER_API),
    }
    bench.stream(requests["running"], [1])
    bench.stream(requests["stopped"], [1])
    bench.stream(requests["other"], [1])
    bench.abort(requests["aborted"])
    bench.orders.clear()
    return requests


def settle(bench: CoreBench, requests: dict[str, RequestId]) -> None:
    """The scheduler's answers to everything open."""
    bench.hear(Queued(request=requests["admitted"]))
    bench.finish(*((requests[name], 0, ABORT, 0) for name in ("admitted", "queued", "running", "aborted")))
    bench.finish((requests["running"], 1, ABORT, 0), (requests["stopped"], 0, STOP, 1), (requests["other"], 0, LENGTH, 1))


def test_a_dead_api_ends_its_requests_and_hears_nothing() -> None:
    bench = CoreBench.of()
    requests = in_every_phase(bench)
    before = len(bench.emitted)
    outgoing = bench.take(bench.core.api_gone(API, AbortReason.PEER_DIED))
    settle(bench, requests)
    ordered = [(order.request, order.reason) for order in bench.aborts]
    assert [(requests[name], AbortReason.PEER_DIED) for name in ("admitted", "queued", "running")] == ordered
    assert ((), before + 1) == (outgoing.to_api, len(bench.emitted))
    assert LENGTH == bench.views[requests["other"]].only.reason
    assert 3 == bench.core.statistics().counters.aborts_own
    bench.assert_quiescent()


def test_what_a_dead_api_had_sent_and_comes_later_is_dropped() -> None:
    bench = CoreBench.of()
    bench.take(bench.core.api_gone(API, AbortReason.PEER_DIED))
    request = bench.admit()
    bench.abort(request)
    assert ([], untold()) == (bench.orders, bench.views[request])
    bench.assert_quiescent()


def test_aborts_are_counted_by_their_sender_and_those_of_the_dead_apart() -> None:
    bench = CoreBench.of()
    for api in (API, API, OTHER_API):
        bench.abort(bench.begin(PROMPT, api=api).request)
    assert 0 == bench.core.statistics().aborts_emitted["process_gone"]

    bench.core.api_gone(API, AbortReason.PEER_DIED)
    bench.abort(compose_request_id(API, 10**6))

    statistics = bench.core.statistics()
    assert {API: 3, OTHER_API: 1} == statistics.counters.aborts_taken
    assert 3 == statistics.aborts_emitted["process_gone"]


def test_api_processes_that_die_for_ever_take_no_more_memory_and_their_aborts_stay_counted() -> None:
    bench = CoreBench.of()
    deaths = MOST_DEAD_APIS + 10
    for number in range(deaths):
        api = ApiId(1000 + number)
        bench.abort(bench.begin(PROMPT, api=api).request)
        bench.take(bench.core.api_gone(api, AbortReason.PEER_DIED))

    statistics = bench.core.statistics()
    assert (MOST_DEAD_APIS, deaths) == (len(statistics.counters.aborts_taken), statistics.aborts_emitted["process_gone"])
    bench.assert_quiescent()


def test_a_slow_api_is_told_the_end_of_each_request_once() -> None:
    bench = CoreBench.of()
    requests = in_every_phase(bench)
    bench.take(bench.core.api_gone(API, AbortReason.SLOW_CONSUMER))
    assert Outgoing() == bench.core.api_gone(API, AbortReason.SLOW_CONSUMER)
    for name in ("preparing", "admitted"):
        verdict = bench.views[requests[name]].verdict
        assert isinstance(verdict, Rejected)
        assert verdict.reason.is_retryable
    for name in ("queued", "running"):
        view = bench.views[requests[name]]
        assert {ABORT} == {choice.reason for choice in view.choices}
        assert view.usage is not None
        assert "fell behind" in (view.error or "")
    settle(bench, requests)
    assert ["admitted", "queued", "running"] == [name for name, request in requests.items() if request in aborted(bench)]
    bench.assert_quiescent()


def aborted(bench: CoreBench) -> list[RequestId]:
    return [order.request for order in bench.aborts]


def test_check_finds_a_lost_request_and_one_that_is_kept() -> None:
    bench = CoreBench.of()
    request = bench.admit()
    admitted = bench.core._admitted.pop(request)
    assert 1 == len(bench.core.check())
    bench.core._admitted[request] = admitted
    assert () == bench.core.check()
    admitted.choices[0].is_confirmed = True
    assert 2 == len(bench.core.check())


def test_a_slow_api_may_submit_again() -> None:
    bench = CoreBench.of()
    bench.take(bench.core.api_gone(API, AbortReason.SLOW_CONSUMER))
    request = bench.open()
    assert isinstance(bench.views[request].verdict, Accepted)


def test_a_request_that_waited_too_long_ends_with_the_reason_in_words() -> None:
    bench = CoreBench.of()
    request = bench.open(PROMPT, n=2)

    bench.finish(*((request, choice, FinishReason.QUEUE_TIMEOUT, 0) for choice in range(2)))

    view = bench.views[request]
    assert [FinishReason.QUEUE_TIMEOUT] * 2 == [choice.reason for choice in view.choices]
    assert view.error is not None
    assert "waited in its queue for as long as it may" in view.error
    bench.assert_quiescent()


def submit_again(bench: CoreBench, incarnation: int) -> RequestId:
    """A request that was submitted before, prepared."""
    preparation = bench.begin(PROMPT, incarnation=incarnation)
    bench.take(bench.core.prepared(preparation.request, preparation.run()))
    return preparation.request


def test_an_abort_of_an_earlier_incarnation_is_late() -> None:
    bench = CoreBench.of()
    preparing, admitted = bench.begin(PROMPT, incarnation=1).request, submit_again(bench, 1)

    for request in (preparing, admitted):
        bench.abort(request, incarnation=0)
    assert (True, (0, 0, 2)) == (bench.core.is_wanted(preparing, 1), aborts(bench))

    for request in (preparing, admitted):
        bench.abort(request, incarnation=1)
    assert (False, (1, 1, 2)) == (bench.core.is_wanted(preparing, 1), aborts(bench))


def test_what_the_work_for_an_earlier_incarnation_came_to_is_dropped() -> None:
    bench = CoreBench.of()
    preparation = bench.begin(PROMPT, incarnation=1)
    other = CoreBench.of()
    earlier = other.begin(PROMPT)
    assert earlier.request == preparation.request

    bench.take(bench.core.prepared(preparation.request, earlier.run()))

    assert ([], True) == (bench.orders, bench.core.is_wanted(preparation.request, 1))


def test_everything_that_is_said_of_a_request_names_its_incarnation() -> None:
    bench = CoreBench.of()
    refused, queued, first, behind = submit_again(bench, 2), submit_again(bench, 2), bench.open(), submit_again(bench, 3)
    rejected = bench.begin(Prompt.of_token_ids([]), incarnation=4)
    bench.take(bench.core.prepared(rejected.request, rejected.run()))
    bench.hear(Refused(request=refused, reason=RefuseReason.NEVER_FITS, limit=1, actual=2))
    bench.hear(Queued(request=queued))

    bench.tokens((queued, 0, 0, 1), (first, 0, 0, 1))
    bench.take(bench.core.api_gone(API, AbortReason.SLOW_CONSUMER))

    verdicts = [bench.views[request].verdict for request in (refused, queued, first, behind, rejected.request)]
    assert [2, 2, 0, 3, 4] == [verdict.incarnation for verdict in verdicts if verdict is not None]
    spoken = [(message.incarnation, unpack_i64(message.requests).tolist()) for message in bench.emitted]
    assert [(2, [queued]), (0, [first])] * 2 == spoken
