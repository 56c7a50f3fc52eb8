"""A request that is admitted with output goes on as if it had made it here."""

import attrs
import pytest

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.finish import FinishReason
from support.scheduling_device import counting_script
from support.scheduling_rig import Rig, admit, limits, policy


def said(request: int, choice: int, tokens: int) -> list[int]:
    return [counting_script(request, choice, position) for position in range(tokens)]


@pytest.mark.parametrize("known", [1, 3, 7])
def test_a_choice_goes_on_behind_the_tokens_that_it_came_with(known: int) -> None:
    rig = Rig()
    rig.admit(attrs.evolve(admit(1, tokens=8), output_ids=(pack_i32(said(1, 0, known)),)))

    rig.run()

    assert (said(1, 0, 8), (FinishReason.LENGTH, 8)) == (rig.outputs[1, 0], rig.ended[1, 0])


def test_each_choice_has_tokens_of_its_own() -> None:
    rig = Rig()
    rig.admit(attrs.evolve(admit(1, tokens=6, choices=3), output_ids=tuple(pack_i32(said(1, one, one)) for one in range(3))))

    rig.run()

    assert [said(1, choice, 6) for choice in range(3)] == [rig.outputs[1, choice] for choice in range(3)]


def test_the_slot_is_opened_with_the_tokens_and_computes_them_with_the_prompt() -> None:
    rig = Rig()
    rig.admit(attrs.evolve(admit(1, prompt=4, tokens=8), output_ids=(pack_i32(said(1, 0, 3)),)))

    step = rig.step()

    assert step is not None
    assert said(1, 0, 3) == unpack_i32(step.opened[0].output_ids).tolist()
    assert [7] == unpack_i32(step.counts).tolist()
    rig.run()


def test_a_choice_that_came_with_tokens_is_preempted_like_any_other() -> None:
    rig = Rig(limits=limits(pages=10, page_size=4), policy=policy())
    for request in (1, 2):
        rig.admit(attrs.evolve(admit(request, prompt=4, tokens=20), output_ids=(pack_i32(said(request, 0, 2)),)))

    rig.run()

    assert rig.scheduler.statistics().counters.preemptions
    assert [said(request, 0, 20) for request in (1, 2)] == [rig.outputs[request, 0] for request in (1, 2)]


@pytest.mark.parametrize("output_ids", [(b"",), (pack_i32([1]), pack_i32([1, 2, 3, 4])), (b"123", b"")])
def test_tokens_that_cannot_be_so_far_are_refused(output_ids: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match=r"tokens so far|packed"):
        attrs.evolve(admit(1, tokens=4, choices=2), output_ids=output_ids)
