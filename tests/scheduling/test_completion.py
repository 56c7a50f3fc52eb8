import pytest

from layered_llm.domain.columns import pack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import StepId, TextId
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from layered_llm.domain.messages.text_scheduler import RequestsFinished, TokensEmitted
from support.scheduling_device import Script
from support.scheduling_rig import Rig, admit, policy


def end_at(position: int, token: int = 77) -> Script:
    return lambda _seed, _choice, at: token if at == position else at


def completed(step: int, *tokens: int) -> StepCompleted:
    return StepCompleted(step=StepId(step), token_ids=pack_i32(tokens), device_us=0, open_slots=1)


def test_the_last_token_allowed_ends_a_choice_with_length() -> None:
    rig = Rig()
    rig.admit(admit(1, tokens=3))

    rig.run()

    assert {(1, 0): (FinishReason.LENGTH, 3)} == rig.ended
    assert 3 == len(rig.outputs[1, 0])


def test_an_end_id_ends_a_choice_with_stop_and_is_shown() -> None:
    rig = Rig(script=end_at(2))
    rig.admit(admit(1, tokens=9, end_ids=(77,)))

    rig.run()

    assert {(1, 0): (FinishReason.STOP, 3)} == rig.ended
    assert [0, 1, 77] == rig.outputs[1, 0]


def test_an_end_id_as_last_token_allowed_is_a_stop() -> None:
    rig = Rig(script=end_at(2))
    rig.admit(admit(1, tokens=3, end_ids=(77,)))

    rig.run()

    assert FinishReason.STOP is rig.reason(1)


def test_another_requests_end_id_ends_nothing() -> None:
    rig = Rig(script=end_at(0))
    rig.admit(admit(1, tokens=3, end_ids=(77,)))
    rig.admit(admit(2, tokens=3, end_ids=(78,)))

    rig.run()

    assert [FinishReason.STOP, FinishReason.LENGTH] == [rig.reason(1), rig.reason(2)]


def test_each_worker_gets_one_message_of_each_kind_in_order() -> None:
    rig = Rig()
    for request in range(4):
        rig.admit(admit(request, tokens=1, choices=2), worker=request % 2)

    rig.launch()
    sent = rig.finish().outgoing

    assert [TextId(0), TextId(0), TextId(1), TextId(1)] == [one.worker for one in sent]
    assert [TokensEmitted, RequestsFinished] * 2 == [type(one.message) for one in sent]


def test_a_chunk_within_the_prompt_emits_nothing() -> None:
    rig = Rig(policy=policy(budget=4))
    rig.admit(admit(1, prompt=8))

    rig.launch()

    assert () == rig.finish().outgoing


def test_choices_end_one_by_one() -> None:
    rig = Rig(script=lambda _seed, choice, position: 77 if position == choice else position)
    rig.admit(admit(1, tokens=9, choices=3, end_ids=(77,)))

    rig.run()

    assert {(1, 0): (FinishReason.STOP, 1), (1, 1): (FinishReason.STOP, 2), (1, 2): (FinishReason.STOP, 3)} == rig.ended


@pytest.mark.parametrize("result", [completed(2, 5), completed(0, 5), completed(1), completed(1, 5, 6)])
def test_a_result_of_another_step_or_size_is_our_own_fault(result: StepCompleted) -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.launch()

    with pytest.raises(InvariantViolated):
        rig.scheduler.complete(result)


def test_a_result_without_a_step_in_flight_is_our_own_fault() -> None:
    with pytest.raises(InvariantViolated, match="step 1"):
        Rig().scheduler.complete(completed(1))


def test_a_slot_that_the_runtime_leaks_is_reported() -> None:
    rig = Rig()
    rig.admit(admit(1))
    rig.launch()

    rig.scheduler.complete(StepCompleted(step=StepId(1), token_ids=pack_i32([5]), device_us=0, open_slots=3))

    assert ("the runtime holds state of 3 slots, 1 are open",) == rig.scheduler.check()


def test_figures_add_up() -> None:
    rig = Rig(policy=policy(budget=8))
    rig.admit(admit(1, prompt=10, tokens=3, choices=2))
    rig.admit(admit(2, prompt=5, tokens=1))
    rig.run()

    figures = rig.scheduler.statistics()

    assert (2, 3) == (figures.counters.requests_accepted, figures.counters.choices_accepted)
    assert (10 + 2 + 5, 4) == (figures.counters.prefill_tokens, figures.counters.decode_tokens)
    assert (25, 8) == (figures.counters.prefix_lookup_tokens, figures.counters.prefix_hit_tokens)
    assert {FinishReason.LENGTH: 3} == figures.counters.finished
    assert len(rig.device.steps) == figures.counters.steps


def test_all_that_a_result_leads_to_comes_in_one_value() -> None:
    rig = Rig()
    rig.admit(admit(1, prompt=4, tokens=1), now_us=100)
    assert rig.launch(now_us=250)

    effects = rig.scheduler.complete(rig.device.finish(), now_us=900)

    assert [TokensEmitted, RequestsFinished] == [type(one.message) for one in effects.outgoing]
    assert ((650,), ((650, 0),), 5) == (effects.prefill_us, effects.ended, effects.new_tokens)
