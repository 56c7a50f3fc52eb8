from layered_llm.domain.columns import pack_i32
from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.domain.messages.text_scheduler import TokensEmitted
from support.logprobs import Pairs, columns_of, pairs_of
from support.scheduling_rig import Rig, admit


def told(rig: Rig, rows: list[Pairs] | None) -> dict[int, list[Pairs] | None]:
    """What each worker is told when step 1 brings these entries."""
    result = StepCompleted(
        step=StepId(1),
        token_ids=pack_i32([5, 6, 7]),
        device_us=0,
        open_slots=3,
        logprobs=None if rows is None else columns_of(rows),
    )
    sent = {one.worker: one.message for one in rig.scheduler.complete(result).outgoing}
    return {
        int(worker): None if message.logprobs is None else pairs_of(message.logprobs)
        for worker, message in sent.items()
        if isinstance(message, TokensEmitted)
    }


def started() -> Rig:
    """Requests 0 and 2 are worker 0's, request 1 is worker 1's."""
    rig = Rig()
    for request in range(3):
        rig.admit(admit(request), worker=request % 2)
    rig.launch()
    return rig


def test_each_worker_is_told_the_entries_of_its_own_tokens() -> None:
    rows: list[Pairs] = [[(5, -1.0), (9, -0.5)], [(6, -2.0)], []]
    assert {0: [rows[0], []], 1: [rows[1]]} == told(started(), rows)


def test_a_worker_whose_tokens_have_none_gets_no_columns() -> None:
    assert {0: [[(5, -1.0)], []], 1: None} == told(started(), [[(5, -1.0)], [], []])


def test_a_step_without_any_tells_none() -> None:
    assert {0: None, 1: None} == told(started(), None)


def test_entries_of_an_aborted_request_are_dropped_with_its_token() -> None:
    rig = started()
    rig.abort(0)
    assert {0: [[(7, -3.0)]], 1: [[(6, -2.0)]]} == told(rig, [[(5, -1.0)], [(6, -2.0)], [(7, -3.0)]])
