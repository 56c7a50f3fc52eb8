"""What stands in a step, to the last column."""

from layered_llm.domain.columns import pack_i8, pack_i32, unpack_i8, unpack_i32
from layered_llm.domain.ids import SlotId, StepId
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, OpenSlot
from layered_llm.scheduling.plan import Idle
from support.scheduling_rig import Rig, admit, limits, policy


def launched(rig: Rig) -> ExecuteStep:
    step = rig.launch()
    assert step is not None
    return step


def counts(rig: Rig) -> list[int]:
    step = launched(rig)
    rig.finish()
    return list(unpack_i32(step.counts))


def test_idle_without_requests() -> None:
    assert Idle() == Rig().scheduler.plan()


def test_the_first_step_opens_the_slot_and_carries_the_prompt() -> None:
    rig = Rig(limits=limits(page_size=4))
    message = admit(1, prompt=6, tokens=3)
    rig.admit(message)

    expected = ExecuteStep(
        step=StepId(1),
        retired=b"",
        opened=(OpenSlot(slot=SlotId(0), choice=0, prompt_ids=message.prompt_ids, output_ids=b"", sampling=message.sampling),),
        page_slots=pack_i32([0]),
        page_counts=pack_i32([2]),
        page_offsets=pack_i32([0]),
        page_ids=pack_i32([1, 0]),
        slots=pack_i32([0]),
        starts=pack_i32([0]),
        counts=pack_i32([6]),
        samples=pack_i8([1]),
    )
    assert expected == launched(rig)


def test_a_decode_step_carries_its_row_alone() -> None:
    rig = Rig()
    rig.admit(admit(1, prompt=4, tokens=8))
    rig.step()
    rig.step()

    expected = ExecuteStep(
        step=StepId(3),
        retired=b"",
        opened=(),
        page_slots=b"",
        page_counts=b"",
        page_offsets=b"",
        page_ids=b"",
        slots=pack_i32([0]),
        starts=pack_i32([GO_ON]),
        counts=pack_i32([1]),
        samples=pack_i8([1]),
    )
    assert expected == launched(rig)


def test_a_page_is_appended_when_the_last_one_is_full() -> None:
    rig = Rig(limits=limits(page_size=4))
    rig.admit(admit(1, prompt=4, tokens=8))

    offsets = []
    while not rig.scheduler.is_quiescent:
        step = rig.step()
        assert step is not None
        offsets.append(list(unpack_i32(step.page_offsets)))

    assert [[0], [1], [], [], [], [2], [], [], []] == offsets


def test_a_prompt_is_cut_into_chunks_and_samples_behind_the_last() -> None:
    rig = Rig(policy=policy(budget=4))
    rig.admit(admit(1, prompt=10, tokens=1))

    steps = [rig.step() for _ in range(3)]

    assert [[4], [4], [2]] == [list(unpack_i32(step.counts)) for step in steps if step]
    assert [[0], [4], [8]] == [list(unpack_i32(step.starts)) for step in steps if step]
    assert [[0], [0], [1]] == [list(unpack_i8(step.samples)) for step in steps if step]
    assert [1, 0, 0] == [len(step.opened) for step in steps if step]


def test_decodes_come_first_and_prompts_share_the_rest() -> None:
    rig = Rig(policy=policy(budget=8))
    rig.admit(admit(1, prompt=2, tokens=9))
    rig.admit(admit(2, prompt=2, tokens=9))
    rig.step()
    rig.admit(admit(3, prompt=20, tokens=1))

    assert [1, 1, 6] == counts(rig)


def test_one_step_is_in_flight_at_most() -> None:
    rig = Rig(policy=policy(in_flight=1))
    rig.admit(admit(1))
    rig.launch()

    assert Idle() == rig.scheduler.plan()


def test_the_second_step_is_planned_before_the_result_of_the_first() -> None:
    rig = Rig(policy=policy(in_flight=2))
    rig.admit(admit(1, prompt=4, tokens=8))

    starts = [list(unpack_i32(launched(rig).starts)) for _ in range(2)]

    assert [[0], [GO_ON]] == starts
    assert rig.launch() is None


def test_no_row_is_planned_beyond_the_last_token() -> None:
    rig = Rig(policy=policy(in_flight=2))
    rig.admit(admit(1, prompt=4, tokens=1))
    rig.launch()

    assert rig.launch() is None


def test_more_decodes_than_budget_take_turns() -> None:
    rig = Rig(policy=policy(budget=3))
    for request in range(5):
        rig.admit(admit(request, prompt=1, tokens=30))
    for _ in range(5):
        rig.step()

    turns = []
    for _ in range(5):
        step = launched(rig)
        turns.append(set(unpack_i32(step.slots)))
        rig.finish()

    assert {3} == {len(turn) for turn in turns}
    assert {0: 3, 1: 3, 2: 3, 3: 3, 4: 3} == {slot: sum(slot in turn for turn in turns) for slot in range(5)}


def test_prompts_move_where_decodes_would_fill_every_step() -> None:
    rig = Rig(policy=policy(budget=4))
    for request in range(4):
        rig.admit(admit(request, prompt=1, tokens=40))
    for _ in range(3):
        rig.step()
    rig.admit(admit(9, prompt=5, tokens=1))

    for _ in range(6):
        rig.step()

    assert (9, 0) in rig.ended
    assert all(len(rig.outputs[request, 0]) >= 5 for request in range(4))


def test_a_retired_slot_is_sent_at_once_in_a_step_without_rows() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=1))
    rig.step()

    step = launched(rig)

    assert (pack_i32([0]), 0) == (step.retired, step.row_count)
    rig.finish()
    assert rig.launch() is None
    rig.quiet()


def test_a_slot_is_opened_again_by_the_step_that_retires_it() -> None:
    rig = Rig(limits=limits(slots=1))
    rig.admit(admit(1, tokens=1))
    rig.admit(admit(2, tokens=1))
    rig.step()

    step = launched(rig)

    assert (pack_i32([0]), [SlotId(0)]) == (step.retired, [opened.slot for opened in step.opened])


def test_the_surplus_token_of_an_ended_choice_is_dropped() -> None:
    rig = Rig(policy=policy(in_flight=2), script=lambda _seed, _choice, position: 77 if position == 1 else position)
    rig.admit(admit(1, tokens=9, end_ids=(77,)))

    rig.run()

    assert [0, 77] == rig.outputs[1, 0]
    assert 1 == rig.scheduler.statistics().counters.dropped_tokens
