"""Recomputes from scratch what must always be true of the scheduler's state.

Must not know: how the state came about. It reads, and changes nothing.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import attrs

from layered_llm.domain.ids import RequestId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.scheduling.admission import WaitingQueue
from layered_llm.scheduling.plan import PlannedStep
from layered_llm.scheduling.pools import IdT, PoolCensus, count_everywhere
from layered_llm.scheduling.running import RunningChoices
from layered_llm.scheduling.sequences import Phase, Request, Sequence


@attrs.frozen(kw_only=True)
class SchedulerState:
    """Everything that an invariant speaks of."""

    limits: RuntimeLimits
    max_steps_in_flight: int
    requests: Mapping[RequestId, Request]
    waiting: WaitingQueue
    running: RunningChoices
    in_flight: deque[PlannedStep]
    open_slots_expected: int
    """After the last acknowledged step."""
    open_slots_reported: int


def violations(state: SchedulerState) -> Iterator[str]:
    """One sentence for each invariant that does not hold."""
    yield from _steps(state)
    yield from _places(state)
    yield from _pages(state)
    yield from _slots(state)
    for sequence in (*state.running.prefilling, *state.running.decoding):
        yield from _progress(state, sequence)


def _steps(state: SchedulerState) -> Iterator[str]:
    steps = [planned.step for planned in state.in_flight]
    if len(steps) > state.max_steps_in_flight:
        yield f"{len(steps)} steps are in flight, at most {state.max_steps_in_flight} may be"
    if steps and steps != list(range(steps[0], steps[0] + len(steps))):
        yield f"steps in flight are not consecutive: {steps}"
    if state.open_slots_reported != state.open_slots_expected:
        yield f"the runtime holds state of {state.open_slots_reported} slots, {state.open_slots_expected} are open"


def _places(state: SchedulerState) -> Iterator[str]:
    places = {
        Phase.WAITING: state.waiting.sequences(),
        Phase.PREFILLING: state.running.prefilling,
        Phase.DECODING: state.running.decoding,
    }
    placed = Counter(sequence for sequences in places.values() for sequence in sequences)
    for phase, sequences in places.items():
        yield from (f"{_name(one)} is in phase {one.phase}, kept under {phase}" for one in sequences if one.phase is not phase)
    unended = [one for request in state.requests.values() for one in request.sequences if one.phase is not Phase.ENDED]
    if placed != Counter(unended):
        yield f"{len(unended)} choices of open requests have not ended, {placed.total()} are kept"
    for request_id, request in state.requests.items():
        still_open = sum(one.phase is not Phase.ENDED for one in request.sequences)
        if not still_open or still_open != request.open_choices:
            yield f"request {request_id} counts {request.open_choices} open choices, {still_open} have not ended"
    waiting = Counter(one.request for one in places[Phase.WAITING])
    if waiting != Counter(state.waiting.choices_by_request()):
        yield "waiting choices are not counted right by request"


def _pages(state: SchedulerState) -> Iterator[str]:
    pages, sequences = state.running.pages, (*state.running.prefilling, *state.running.decoding)
    census = pages.census()
    counts = count_everywhere(census, [page for one in sequences for page in one.pages])
    if counts != dict.fromkeys(range(state.limits.pages), 1):
        yield "free, quarantined and owned pages are not all pages, each once"
    reserved = sum(one.worst_case_pages - len(one.pages) for one in sequences)
    if reserved != pages.reserved:
        yield f"{pages.reserved} pages are counted as reserved, choices were promised {reserved}"
    if reserved > pages.free:
        yield f"{reserved} pages are reserved, {pages.free} are free"
    yield from _quarantine(state, census)


def _slots(state: SchedulerState) -> Iterator[str]:
    held = [one.slot for one in (*state.running.prefilling, *state.running.decoding) if one.slot is not None]
    census = state.running.slots_census()
    if count_everywhere(census, held) != dict.fromkeys(range(state.limits.slots), 1):
        yield "free, quarantined and held slots are not all slots, each once"
    yield from _quarantine(state, census)


def _quarantine(state: SchedulerState, census: PoolCensus[IdT]) -> Iterator[str]:
    in_flight = {planned.step for planned in state.in_flight}
    for step, ids in census.quarantined:
        if step not in in_flight:
            yield f"{ids} wait for step {step}, which is not in flight"


def _progress(state: SchedulerState, sequence: Sequence) -> Iterator[str]:
    flying = sum(
        count for planned in state.in_flight for one, count in zip(planned.rows, planned.counts, strict=True) if one is sequence
    )
    if sequence.planned_tokens - sequence.computed_tokens != flying:
        yield f"{_name(sequence)} has {flying} tokens in flight, not planned less computed"
    if sequence.planned_tokens > sequence.plan_limit_tokens:
        yield f"{_name(sequence)} is planned beyond its limit"
    if (sequence.phase is Phase.PREFILLING) != (sequence.planned_tokens < sequence.prompt_tokens):
        yield f"{_name(sequence)} is {sequence.phase} with {sequence.planned_tokens} of {sequence.prompt_tokens} planned"
    if len(sequence.pages) != state.running.pages.pages_for(sequence.planned_tokens):
        yield f"{_name(sequence)} owns {len(sequence.pages)} pages for {sequence.planned_tokens} planned tokens"


def _name(sequence: Sequence) -> str:
    return f"choice {sequence.choice} of request {sequence.request}"
