import attrs
import pytest

from layered_llm.domain.columns import pack_i32, unpack_i32, unpack_i64
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs
from layered_llm.domain.messages.scheduler_runtime import GO_ON, ExecuteStep, StepCompleted
from layered_llm.domain.messages.text_scheduler import AbortRequest, Admit, StepsTaken, TokensEmitted
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.plan import NextStep
from support.logprobs import columns_of, pairs_of
from support.scheduling_rig import admit, limits, policy

WORKER = TextId(0)


def asking(request: int, *, prompt: int = 8, tokens: int = 4) -> Admit:
    return attrs.evolve(admit(request, prompt=prompt, tokens=tokens), reads_cache=False)


def told(start: int, count: int) -> LogprobColumns | None:
    """Each place tells itself."""
    return columns_of([[(place, -1.0)] for place in range(start, start + count)])


def complete(scheduler: Scheduler, step: ExecuteStep, *, tells: bool = True) -> list[TokensEmitted]:
    """The runtime's answer, in which each row tells of the places that it computes."""
    rows = list(zip(unpack_i32(step.starts), unpack_i32(step.counts), strict=True))
    sampled = sum(step.samples)
    result = StepCompleted(
        step=step.step,
        token_ids=pack_i32([77] * sampled),
        device_us=0,
        open_slots=len(rows),
        prompt_logprobs=PromptLogprobs.of([told(*row) for row in rows]) if tells else None,
    )
    sent = [one.message for one in scheduler.complete(result).outgoing]
    scheduler.handle(WORKER, StepsTaken(step=step.step)) if sent else None
    return [message for message in sent if isinstance(message, TokensEmitted)]


def planned(scheduler: Scheduler) -> ExecuteStep:
    step = scheduler.plan()
    assert isinstance(step, NextStep)
    return step.message


def places(message: TokensEmitted) -> list[list[int] | None]:
    """What each row of a message tells of its prompt."""
    if message.prompt_logprobs is None:
        return []
    return [None if one is None else [pairs[0][0] for pairs in pairs_of(one)] for one in message.prompt_logprobs]


def test_what_chunks_tell_comes_at_once_with_the_first_token() -> None:
    scheduler = Scheduler(limits=limits(), policy=policy(budget=3))
    scheduler.handle(WORKER, asking(1))
    messages = []
    for _ in range(3):
        messages += complete(scheduler, planned(scheduler))
    (message,) = messages
    assert [list(range(8))] == places(message)
    (next_message,) = complete(scheduler, planned(scheduler), tells=False)
    assert next_message.prompt_logprobs is None


def test_what_the_last_chunk_tells_is_kept_though_its_choice_is_preempted_meanwhile() -> None:
    scheduler = Scheduler(limits=limits(pages=6, page_size=1), policy=policy(budget=4, in_flight=2))
    scheduler.handle(WORKER, admit(1, prompt=1, tokens=5))
    scheduler.handle(WORKER, asking(2, prompt=4, tokens=2))
    first_chunk, last_chunk = planned(scheduler), planned(scheduler)
    complete(scheduler, first_chunk)
    planned(scheduler)
    assert 1 == scheduler.statistics().counters.preemptions

    (message,) = complete(scheduler, last_chunk)

    told_by_request = dict(zip(unpack_i64(message.requests), places(message), strict=True))
    assert [0, 1, 2, 3] == told_by_request[2]
    assert () == scheduler.check()


def test_what_is_told_of_an_aborted_request_is_dropped() -> None:
    scheduler = Scheduler(limits=limits(), policy=policy())
    scheduler.handle(WORKER, asking(1))
    step = planned(scheduler)
    scheduler.handle(WORKER, AbortRequest(request=RequestId(1), reason=AbortReason.CLIENT_GONE))
    assert [] == complete(scheduler, step)


def test_the_cache_is_not_read_for_a_prompt_that_is_to_be_told() -> None:
    scheduler = Scheduler(limits=limits(), policy=policy())
    for request in (asking(1), attrs.evolve(asking(1), request=RequestId(2))):
        scheduler.handle(WORKER, request)
        step = planned(scheduler)
        assert ([0], [8]) == (list(unpack_i32(step.starts)), list(unpack_i32(step.counts)))
        complete(scheduler, step)
        scheduler.handle(WORKER, AbortRequest(request=request.request, reason=AbortReason.CLIENT_GONE))
    assert () == scheduler.check()


def test_a_result_that_tells_of_more_rows_than_there_were_is_our_own_fault() -> None:
    scheduler = Scheduler(limits=limits(), policy=policy())
    scheduler.handle(WORKER, asking(1))
    step = planned(scheduler)
    result = StepCompleted(
        step=step.step,
        token_ids=pack_i32([77]),
        device_us=0,
        open_slots=1,
        prompt_logprobs=PromptLogprobs.of([told(0, 1), None]),
    )
    with pytest.raises(InvariantViolated, match="has 1 rows, prompts of 2 came"):
        scheduler.complete(result)


@attrs.define
class Runtime:
    """Tells, as a real one does, of the prompts of slots that were opened without output."""

    prompts: dict[int, int] = attrs.field(factory=dict)
    retold: int = 0

    def execute(self, step: ExecuteStep) -> StepCompleted:
        for slot in unpack_i32(step.retired):
            self.prompts.pop(slot, None)
        for opening in step.opened:
            self.prompts[opening.slot] = 0 if opening.output_ids else len(opening.prompt_ids) // 4
            self.retold += not opening.output_ids
        rows = zip(unpack_i32(step.slots), unpack_i32(step.starts), unpack_i32(step.counts), strict=True)
        parts = [
            None if start == GO_ON else told(start, max(0, min(count, self.prompts[slot] - start)))
            for slot, start, count in rows
        ]
        return StepCompleted(
            step=step.step,
            token_ids=pack_i32([77] * sum(step.samples)),
            device_us=0,
            open_slots=len(self.prompts),
            prompt_logprobs=PromptLogprobs.of(parts),
        )


def run_in_few_pages(runtime: Runtime, requests: list[Admit]) -> tuple[int, list[tuple[int, list[int]]]]:
    """How often choices were preempted, and (request, places) of each prompt that is told."""
    scheduler = Scheduler(limits=limits(pages=8), policy=policy(budget=4))
    for request in requests:
        scheduler.handle(WORKER, request)
    heard: list[tuple[int, list[int]]] = []
    while not scheduler.is_quiescent:
        for one in scheduler.complete(runtime.execute(planned(scheduler))).outgoing:
            if isinstance(one.message, TokensEmitted):
                rows = zip(unpack_i64(one.message.requests), places(one.message), strict=False)
                heard += [(request, row) for request, row in rows if row is not None]
                scheduler.handle(WORKER, StepsTaken(step=one.message.step))
    assert () == scheduler.check()
    return scheduler.statistics().counters.preemptions, sorted(heard)


def test_a_choice_preempted_behind_its_first_token_does_not_tell_its_prompt_again() -> None:
    runtime = Runtime()
    preemptions, heard = run_in_few_pages(runtime, [asking(1, prompt=9, tokens=14), asking(2, prompt=9, tokens=14)])
    assert [(1, list(range(9))), (2, list(range(9)))] == heard
    assert preemptions
    assert 2 == runtime.retold


def test_a_choice_preempted_within_its_prompt_tells_all_of_it_when_it_starts_again() -> None:
    runtime = Runtime()
    older = [asking(1, prompt=4, tokens=24), asking(2, prompt=4, tokens=24)]
    preemptions, heard = run_in_few_pages(runtime, [*older, asking(3, prompt=16, tokens=2)])
    assert [(1, list(range(4))), (2, list(range(4))), (3, list(range(16)))] == heard
    assert preemptions
    assert 3 < runtime.retold
