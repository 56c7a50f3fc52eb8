import attrs
import pytest

from layered_llm.domain.ids import ApiId, compose_request_id
from layered_llm.domain.messages.supervision import (
    AbortByName,
    ApiHello,
    FindRequest,
    RequestFate,
    RequestFound,
    RequestsAborted,
    Stop,
)
from layered_llm.service.supervisor.supervision import Supervision
from layered_llm.transport.peers import STATE_TIMEOUT_S, api_peer_name

ASKER, HOLDER, THIRD = ApiId(1), ApiId(2), ApiId(3)
ASKER_NAME, HOLDER_NAME, THIRD_NAME = map(api_peer_name, (ASKER, HOLDER, THIRD))
REQUEST = compose_request_id(HOLDER, 7)
BY_NAME = AbortByName(query=40, request=REQUEST)
ALL = AbortByName(query=41, request=None)
OPEN, ENDED, LATER = RequestFate(is_open=True), RequestFate(reason="stop"), RequestFate(reason="length")


@pytest.fixture
def supervision() -> Supervision:
    supervision = Supervision(pid=1)
    for api in (ASKER, HOLDER, THIRD):
        supervision.api_hello(ApiHello(api=api, pid=1))
    return supervision


def test_an_order_goes_to_the_process_that_issued_the_id_and_its_answer_back(supervision: Supervision) -> None:
    passed_on = AbortByName(query=1, request=REQUEST)
    assert ((HOLDER_NAME, passed_on),) == supervision.ask(ASKER_NAME, BY_NAME, 0.0)

    answer = supervision.answered(HOLDER_NAME, RequestsAborted(query=1, count=2))

    assert ((ASKER_NAME, RequestsAborted(query=40, count=2)),) == answer
    assert () == supervision.answered(HOLDER_NAME, RequestsAborted(query=1, count=2))


@pytest.mark.parametrize("api", [ApiId(9), ASKER])
def test_an_order_that_nobody_else_can_obey_is_answered_at_once(supervision: Supervision, api: ApiId) -> None:
    order = AbortByName(query=40, request=compose_request_id(api, 7))

    assert ((ASKER_NAME, RequestsAborted(query=40, count=0)),) == supervision.ask(ASKER_NAME, order, 0.0)


def test_an_order_for_all_adds_up_what_every_other_process_ended(supervision: Supervision) -> None:
    assert [HOLDER_NAME, THIRD_NAME] == [peer for peer, _ in supervision.ask(ASKER_NAME, ALL, 0.0)]

    assert () == supervision.answered(THIRD_NAME, RequestsAborted(query=1, count=2))
    assert () == supervision.answered(THIRD_NAME, RequestsAborted(query=1, count=2))
    answer = supervision.answered(HOLDER_NAME, RequestsAborted(query=1, count=1))

    assert ((ASKER_NAME, RequestsAborted(query=41, count=3)),) == answer


def test_a_process_that_dies_has_nothing_open(supervision: Supervision) -> None:
    supervision.ask(ASKER_NAME, BY_NAME, 0.0)

    assert ((ASKER_NAME, RequestsAborted(query=40, count=0)),) == supervision.api_died(HOLDER)


def test_a_process_that_says_goodbye_has_nothing_open(supervision: Supervision) -> None:
    supervision.ask(ASKER_NAME, BY_NAME, 0.0)

    answer, stop = supervision.api_goodbye(HOLDER)

    assert (ASKER_NAME, RequestsAborted(query=40, count=0)) == answer
    assert (HOLDER_NAME, Stop()) == stop


def test_the_answer_for_an_asker_that_left_is_dropped(supervision: Supervision) -> None:
    supervision.ask(ASKER_NAME, BY_NAME, 0.0)
    supervision.api_died(ASKER)

    assert () == supervision.answered(HOLDER_NAME, RequestsAborted(query=1, count=1))


def test_no_answer_is_made_up_for_a_process_that_hangs(supervision: Supervision) -> None:
    supervision.ask(ASKER_NAME, BY_NAME, 0.0)

    assert () == supervision.expire_queries(STATE_TIMEOUT_S)
    assert () == supervision.answered(HOLDER_NAME, RequestsAborted(query=1, count=1))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((None, None), None),
        ((ENDED, None), ENDED),
        ((None, OPEN), OPEN),
        ((ENDED, OPEN), OPEN),
        ((OPEN, ENDED), OPEN),
        ((ENDED, LATER), ENDED),
    ],
)
def test_a_question_by_name_goes_to_all_and_that_a_request_is_open_is_the_last_word(
    supervision: Supervision, said: tuple[RequestFate | None, RequestFate | None], told: RequestFate | None
) -> None:
    question = FindRequest(query=42, request=None, names=("mine",), tenant="alice")
    passed_on = attrs.evolve(question, query=1)
    assert ((HOLDER_NAME, passed_on), (THIRD_NAME, passed_on)) == supervision.ask(ASKER_NAME, question, 0.0)

    assert () == supervision.answered(HOLDER_NAME, RequestFound(query=1, fate=said[0]))
    answer = supervision.answered(THIRD_NAME, RequestFound(query=1, fate=said[1]))

    assert ((ASKER_NAME, RequestFound(query=42, fate=told)),) == answer


def test_a_question_by_an_id_goes_to_the_process_that_issued_it(supervision: Supervision) -> None:
    question = FindRequest(query=42, request=REQUEST)

    assert [HOLDER_NAME] == [peer for peer, _ in supervision.ask(ASKER_NAME, question, 0.0)]
    assert ((ASKER_NAME, RequestFound(query=42, fate=None)),) == supervision.api_died(HOLDER)
