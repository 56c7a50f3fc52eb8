import pytest

from layered_llm.transport.heartbeat import HeartbeatTiming, Liveness

TIMING = HeartbeatTiming(interval_s=1.0, timeout_s=5.0)


def liveness_of(*peers: str) -> Liveness:
    liveness = Liveness(TIMING, now=0.0)
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


def test_silent_peer_stays_silent_until_forgotten() -> None:
    liveness = liveness_of("text-0")
    assert ("text-0",) == silent_by(liveness, 6)
    assert ("text-0",) == silent_by(liveness, 7, since=6)

    liveness.forget("text-0")

    assert () == silent_by(liveness, 8, since=7)
    assert [] == list(liveness.peers)


def test_forgetting_an_unknown_peer_is_no_error() -> None:
    liveness_of().forget("text-0")


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


@pytest.mark.parametrize(("interval_s", "timeout_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.9)])
def test_timing_that_allows_no_missed_heartbeat_is_refused(interval_s: float, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="miss one"):
        HeartbeatTiming(interval_s=interval_s, timeout_s=timeout_s)
