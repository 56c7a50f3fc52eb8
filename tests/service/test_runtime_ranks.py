import attrs
import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.ids import StepId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import (
    RuntimeReady,
    RuntimeToScheduler,
    RuntimeWarmingUp,
    StepCompleted,
    StepFailed,
)
from layered_llm.service.workers.runtime_ranks import WARM_UP_SILENCE_S, RuntimeFailed, RuntimeRanks

LIMITS = RuntimeLimits(pages=16, page_size_tokens=4, slots=4, context_tokens=64, vocabulary_size=300)
FIRST, SECOND = "runtime-0", "runtime-1"
FAILED = StepFailed(step=StepId(3), message="out of memory")
RESULT = StepCompleted(step=StepId(3), token_ids=b"", device_us=1, open_slots=2)


def ready(pid: int = 7, limits: RuntimeLimits = LIMITS) -> RuntimeReady:
    return RuntimeReady(limits=limits, pid=pid)


def two_ranks(*words: tuple[str, RuntimeToScheduler]) -> RuntimeRanks:
    """Two ranks that have said these words at second 0."""
    ranks = RuntimeRanks((FIRST, SECOND))
    for rank, word in words:
        ranks.hear(rank, word, 0.0)
    return ranks


def both_ready() -> RuntimeRanks:
    return two_ranks((FIRST, ready(7)), (SECOND, ready(8)))


def test_a_runtime_is_ready_when_every_rank_is() -> None:
    assert not two_ranks((FIRST, ready())).are_ready
    assert both_ready().are_ready


def test_the_limits_are_those_of_every_rank() -> None:
    assert LIMITS == both_ready().limits


def test_ranks_with_different_limits_are_no_runtime() -> None:
    ranks = two_ranks((FIRST, ready()), (SECOND, ready(limits=attrs.evolve(LIMITS, pages=15))))

    with pytest.raises(RuntimeFailed, match="different limits"):
        _ = ranks.limits


def test_the_first_rank_answers() -> None:
    assert RESULT is both_ready().hear(FIRST, RESULT, 1.0)


def test_an_answer_of_another_rank_is_our_own_fault() -> None:
    with pytest.raises(InvariantViolated, match="runtime-1 says StepCompleted"):
        both_ready().hear(SECOND, RESULT, 1.0)


@pytest.mark.parametrize("rank", [FIRST, SECOND])
def test_any_rank_that_fails_is_the_end(rank: str) -> None:
    with pytest.raises(RuntimeFailed, match=f"{rank}, step 3: out of memory"):
        both_ready().hear(rank, FAILED, 1.0)


@pytest.mark.parametrize("word", [FAILED, RESULT])
def test_a_rank_first_says_that_it_is_ready(word: RuntimeToScheduler) -> None:
    with pytest.raises(InvariantViolated, match="before it was ready"):
        two_ranks((FIRST, ready())).hear(SECOND, word, 1.0)


@pytest.mark.parametrize("word", [ready(), RuntimeWarmingUp()])
def test_a_rank_is_ready_once(word: RuntimeToScheduler) -> None:
    with pytest.raises(InvariantViolated, match="after it was ready"):
        two_ranks((SECOND, ready())).hear(SECOND, word, 1.0)


def test_each_rank_that_warms_up_must_go_on_saying_so() -> None:
    ranks = two_ranks((FIRST, RuntimeWarmingUp()), (SECOND, RuntimeWarmingUp()))
    ranks.hear(FIRST, RuntimeWarmingUp(), 5.0)
    assert WARM_UP_SILENCE_S == ranks.silent_s

    ranks.hear(SECOND, ready(), 6.0)
    assert 5.0 + WARM_UP_SILENCE_S == ranks.silent_s


def test_each_rank_is_reported_with_the_slots_of_the_last_answer() -> None:
    ranks = both_ready()
    ranks.hear(FIRST, RESULT, 1.0)

    assert [(0, 7, 2), (1, 8, 2)] == [(report.index, report.pid, report.open_requests) for report in ranks.reports(query=1)]
