import pytest

from layered_llm.transport.peers import HEARTBEAT_INTERVAL_S, Liveness

TIMEOUT_S = 5.0


def liveness_of(*peers: str) -> Liveness:
    liveness = Liveness(timeout_s=TIMEOUT_S, now=0.0)
    for peer in peers:
        liveness.seen(peer, 0.0)
    return liveness


def silent_by(liveness: Liveness, now: int, *, since: int = 0) -> tuple[str, ...]:
    """The last of one look each second."""
    looks = [liveness.silent(float(second)) for second in range(since + 1, now + 1)]
    return looks[-1]


def test_peer_is_silent_only_after_the_timeout() -> None:
    liveness = liveness_of("text-0")

    assert () == silent_by(liveness, 5)
    assert ("text-0",) == liveness.silent(5.1)


def test_heartbeat_starts_the_timeout_anew() -> None:
    liveness = liveness_of("text-0", "text-1")
    silent_by(liveness, 4)
    liveness.seen("text-0", 4.0)

    assert ("text-1",) == silent_by(liveness, 9, since=4)
    assert ("text-0", "text-1") == liveness.silent(9.5)


def test_silent_peer_stays_silent() -> None:
    liveness = liveness_of("text-0")
    assert ("text-0",) == silent_by(liveness, 6)
    assert ("text-0",) == silent_by(liveness, 7, since=6)


def test_own_pause_counts_against_nobody() -> None:
    liveness = liveness_of("text-0")

    assert () == liveness.silent(1000.0)
    assert ("text-0",) == silent_by(liveness, 1004, since=1000)


def test_own_pause_makes_no_peer_heard_in_the_future() -> None:
    liveness = liveness_of()
    liveness.seen("text-0", 999.9)
    liveness.silent(1000.0)

    assert () == silent_by(liveness, 1005, since=1000)
    assert ("text-0",) == silent_by(liveness, 1006, since=1005)


def test_a_timeout_that_allows_no_missed_heartbeat_is_refused() -> None:
    with pytest.raises(ValueError, match="miss one"):
        Liveness(timeout_s=1.9 * HEARTBEAT_INTERVAL_S, now=0.0)
