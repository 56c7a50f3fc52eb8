import pytest

from layered_llm.domain.ids import ApiId, RequestId
from layered_llm.domain.messages.api_text import Detokenized, TextToApi
from layered_llm.transport.outbox import DeferredSends

API, OTHER = ApiId(1), ApiId(2)


def message(number: int) -> TextToApi:
    return Detokenized(request=RequestId(number), text="")


class Peers:
    """Take messages while they have room."""

    def __init__(self) -> None:
        self.room = {API: 0, OTHER: 100}
        self.taken: list[tuple[ApiId, TextToApi]] = []

    def take(self, api: ApiId, message: TextToApi) -> bool:
        if not self.room[api]:
            return False
        self.room[api] -= 1
        self.taken.append((api, message))
        return True


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
def deferred(peers: Peers) -> DeferredSends[ApiId, TextToApi]:
    return DeferredSends(peers.take)


def test_what_is_taken_at_once_does_not_wait(peers: Peers, deferred: DeferredSends[ApiId, TextToApi]) -> None:
    assert deferred.send(OTHER, message(1))
    deferred.retry()

    assert [(OTHER, message(1))] == peers.taken


def test_what_is_not_taken_waits_and_nobody_else_does(peers: Peers, deferred: DeferredSends[ApiId, TextToApi]) -> None:
    assert not deferred.send(API, message(1))
    assert deferred.send(OTHER, message(2))

    assert [(OTHER, message(2))] == peers.taken


def test_nothing_overtakes_what_waits(peers: Peers, deferred: DeferredSends[ApiId, TextToApi]) -> None:
    deferred.send(API, message(1))
    peers.room[API] = 100

    assert not deferred.send(API, message(2))
    deferred.defer(API, [message(3)])
    deferred.retry()

    assert [(API, message(number)) for number in (1, 2, 3)] == peers.taken


def test_a_process_gets_as_much_as_it_takes_and_the_rest_later(peers: Peers, deferred: DeferredSends[ApiId, TextToApi]) -> None:
    deferred.defer(API, [message(number) for number in range(3)])
    for room in (2, 0, 1):
        peers.room[API] = room
        deferred.retry()

    assert [(API, message(number)) for number in range(3)] == peers.taken


def test_a_process_that_caught_up_is_sent_to_at_once_again(peers: Peers, deferred: DeferredSends[ApiId, TextToApi]) -> None:
    deferred.send(API, message(1))
    peers.room[API] = 100
    deferred.retry()

    assert deferred.send(API, message(2))


def test_what_waits_for_a_process_is_dropped_when_it_dies(peers: Peers, deferred: DeferredSends[ApiId, TextToApi]) -> None:
    deferred.send(API, message(1))
    deferred.drop(API)
    peers.room[API] = 100
    deferred.retry()

    assert [] == peers.taken
