"""Rows that yield no token, or several: what the scheduler makes of each."""

import pytest

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.scheduler_runtime import GO_ON, StepCompleted
from layered_llm.domain.messages.text_scheduler import TokensEmitted
from support.scheduling_device import FAILS, Script
from support.scheduling_rig import Rig, admit, limits, policy


def all_of(_step: int, _slot: int, most: int) -> int:
    return most


def every_other_step(step: int, _slot: int, most: int) -> int:
    return most if step % 2 == 0 else 0


def at(position: int, token: int) -> Script:
    return lambda _seed, _choice, place: token if place == position else place


def rig_of_runs(*, script: Script = lambda _seed, _choice, place: place, in_flight: int = 1) -> Rig:
    """Rows yield 3 tokens, but for the first token after a prompt."""
    return Rig(limits=limits(decode_tokens=3), policy=policy(in_flight=in_flight), script=script, yields=all_of)


def started(rig: Rig, *, tokens: int = 9, end_ids: tuple[int, ...] = ()) -> Rig:
    """Request 1 has its first token."""
    rig.admit(admit(1, tokens=tokens, end_ids=end_ids))
    rig.step()
    return rig


def dropped(rig: Rig) -> int:
    return rig.scheduler.statistics().counters.dropped_tokens


def test_a_run_is_shown_token_by_token_at_rising_positions() -> None:
    rig = started(rig_of_runs())
    rig.launch()

    (sent,) = rig.finish().outgoing

    assert isinstance(sent.message, TokensEmitted)
    columns = (sent.message.positions, sent.message.token_ids, sent.message.cached_tokens)
    assert [[1, 2, 3], [1, 2, 3], [-1, -1, -1]] == [list(unpack_i32(column)) for column in columns]


def test_an_end_id_within_a_run_ends_the_choice_there_and_drops_the_rest() -> None:
    rig = started(rig_of_runs(script=at(2, 77)), end_ids=(77,))

    rig.run()

    assert ([0, 1, 77], (FinishReason.STOP, 3)) == (rig.outputs[1, 0], rig.ended[1, 0])
    assert 1 == dropped(rig)


def test_no_run_is_planned_beyond_the_last_token_allowed() -> None:
    rig = started(rig_of_runs(), tokens=6)

    counts = [list(unpack_i32(step.counts)) for step in (rig.step(), rig.step()) if step is not None]

    assert [[3], [2]] == counts
    assert (FinishReason.LENGTH, 6) == rig.ended[1, 0]


def test_a_choice_that_text_ends_within_a_run_drops_what_is_in_flight() -> None:
    rig = started(rig_of_runs())
    rig.step()
    rig.launch()
    rig.stop(1, output_tokens=3)
    rig.finish()

    assert ((FinishReason.STOP, 3), 3) == (rig.ended[1, 0], dropped(rig))
    rig.run()
    assert rig.scheduler.is_quiescent


def test_a_row_without_a_token_is_tried_again_by_the_next_step() -> None:
    rig = Rig(yields=every_other_step)
    rig.admit(admit(1, tokens=2))

    starts = [list(unpack_i32(step.starts)) for step in (rig.step() for _ in range(4)) if step is not None]

    assert [[0], [GO_ON], [GO_ON], [GO_ON]] == starts
    assert 2 == len(rig.outputs[1, 0])


def test_a_failed_row_within_a_run_ends_the_request_and_shows_nothing_of_the_run() -> None:
    rig = started(rig_of_runs(script=at(2, FAILS)))

    rig.run()

    assert ([0], (FinishReason.ERROR, 1)) == (rig.outputs[1, 0], rig.ended[1, 0])


@pytest.mark.parametrize(("counts", "tokens"), [((4,), 4), ((1, 1), 2), ((), 3)])
def test_a_result_that_no_row_was_planned_for_is_our_own_fault(counts: tuple[int, ...], tokens: int) -> None:
    rig = started(rig_of_runs())
    rig.launch()
    result = StepCompleted(
        step=StepId(2), token_ids=pack_i32([5] * tokens), token_counts=pack_i32(counts), device_us=0, open_slots=1
    )

    with pytest.raises(InvariantViolated, match="step 2"):
        rig.scheduler.complete(result)


@pytest.mark.parametrize("counts", [(2, -1), (1, 1)])
def test_counts_that_are_not_those_of_the_tokens_are_no_result(counts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="tokens for counts"):
        StepCompleted(step=StepId(1), token_ids=pack_i32([5]), token_counts=pack_i32(counts), device_us=0, open_slots=1)
