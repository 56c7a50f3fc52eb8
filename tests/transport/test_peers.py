import pytest

from layered_llm.transport.peers import Liveness


def liveness_of(*peers: str) -> Liveness:
    liveness = Liveness(now_s=0.0)
    for peer in peers:
        liveness.seen(peer, 0.0)
    return liveness


def silent_by(liveness: Liveness, now_s: int, *, since_s: int = 0) -> dict[str, float]:
    """The last of one look each second."""
    looks = [liveness.silent_s(float(second)) for second in range(since_s + 1, now_s + 1)]
    return looks[-1]


def test_a_peer_is_silent_from_its_last_word_on() -> None:
    liveness = liveness_of("text-0", "text-1")
    silent_by(liveness, 4)
    liveness.seen("text-0", 4.0)

    assert {"text-0": 5.0, "text-1": 9.0} == silent_by(liveness, 9, since_s=4)


def test_peers_are_in_the_order_in_which_they_were_first_seen() -> None:
    liveness = liveness_of("text-1", "text-0")
    liveness.seen("text-1", 1.0)

    assert ["text-1", "text-0"] == list(liveness.silent_s(1.5))


def test_own_pause_counts_against_nobody() -> None:
    liveness = liveness_of("text-0")

    assert {"text-0": 2.0} == liveness.silent_s(1000.0)
    assert {"text-0": 6.0} == silent_by(liveness, 1004, since_s=1000)


def test_own_pause_makes_no_peer_heard_in_the_future() -> None:
    liveness = liveness_of()
    liveness.seen("text-0", 999.9)

    assert {"text-0": 0.0} == liveness.silent_s(1000.0)
    assert {"text-0": pytest.approx(6.0)} == silent_by(liveness, 1006, since_s=1000)
