"""Recomputes from scratch what must always be true of the scheduler's state.

Must not know: how the state came about. It reads, and changes nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import attrs

from layered_llm.domain.ids import PageId, RequestId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.scheduling.flight import StepsInFlight
from layered_llm.scheduling.pools import IdT, PoolCensus, count_everywhere
from layered_llm.scheduling.running import RunningChoices
from layered_llm.scheduling.sequences import Phase, Request, Sequence
from layered_llm.scheduling.tree_invariants import tree_violations
from layered_llm.scheduling.waiting import WaitingQueue


@attrs.frozen(kw_only=True)
class SchedulerState:
    """Everything that an invariant speaks of."""

    limits: RuntimeLimits
    requests: Mapping[RequestId, Request]
    streams: Counter[str]
    waiting: WaitingQueue
    running: RunningChoices
    flight: StepsInFlight


def violations(state: SchedulerState) -> Iterator[str]:
    """One sentence for each invariant that does not hold."""
    yield from _steps(state)
    yield from _places(state)
    yield from _pages(state)
    yield from _slots(state)
    for sequence in (*state.running.prefilling, *state.running.decoding):
        yield from _progress(state, sequence)


def _steps(state: SchedulerState) -> Iterator[str]:
    steps = [planned.step for planned in state.flight.steps]
    if len(steps) > state.flight.max_steps:
        yield f"{len(steps)} steps are in flight, at most {state.flight.max_steps} may be"
    if steps and steps != list(range(steps[0], steps[0] + len(steps))):
        yield f"steps in flight are not consecutive: {steps}"
    expected, reported = state.flight.open_slots
    if reported != expected:
        yield f"the runtime holds state of {reported} slots, {expected} are open"


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
    if state.streams != Counter(request.sequences[0].admit.tenant for request in state.requests.values()):
        yield "open requests are not counted right by tenant"


def _pages(state: SchedulerState) -> Iterator[str]:
    pages, sequences = state.running.pages, (*state.running.prefilling, *state.running.decoding)
    census, nodes = pages.census(), list(pages.nodes())
    own = [page for one in sequences for page in one.pages[one.shared_pages :]]
    counts = count_everywhere(census, [*own, *(page for node in nodes for page in node.pages)])
    if counts != dict.fromkeys(range(state.limits.pages), 1):
        yield "free, quarantined, cached and owned pages are not all pages, each once"
    for sequence in sequences:
        yield from _shared_pages(state, sequence)
    places = [*(one.place for one in sequences if one.place is not None), *pages.places_let_go()]
    yield from tree_violations(nodes, places, page_size_tokens=state.limits.page_size_tokens, evictable_pages=pages.cached)
    yield from _quarantine(state, census)


def _shared_pages(state: SchedulerState, sequence: Sequence) -> Iterator[str]:
    """The tree's path to the choice's place holds its tokens, in its pages."""
    keys: list[bytes] = []
    path: list[PageId] = []
    node = sequence.place
    while node is not None:
        keys.insert(0, node.key)
        path[:0] = node.pages
        if node.salt != state.running.cache_root(sequence.admit):
            yield f"{_name(sequence)} shares pages of salt {node.salt!r}"
        node = node.parent
    tokens = sequence.shared_pages * state.limits.page_size_tokens
    if path != sequence.pages[: sequence.shared_pages] or b"".join(keys) != sequence.tokens[:tokens].tobytes():
        yield f"{_name(sequence)} shares {sequence.shared_pages} pages that are not its own beginning"
    if tokens > sequence.computed_tokens:
        yield f"{_name(sequence)} shares pages of tokens that are not computed"


def _slots(state: SchedulerState) -> Iterator[str]:
    held = [one.slot for one in (*state.running.prefilling, *state.running.decoding) if one.slot is not None]
    census = state.running.slots_census()
    if count_everywhere(census, held) != dict.fromkeys(range(state.limits.slots), 1):
        yield "free, quarantined and held slots are not all slots, each once"
    yield from _quarantine(state, census)


def _quarantine(state: SchedulerState, census: PoolCensus[IdT]) -> Iterator[str]:
    in_flight = {planned.step for planned in state.flight.steps}
    for step, ids in census.quarantined:
        if step not in in_flight:
            yield f"{ids} wait for step {step}, which is not in flight"


def _progress(state: SchedulerState, sequence: Sequence) -> Iterator[str]:
    flying = sum(
        count
        for planned in state.flight.steps
        for one, slot, count in zip(planned.rows, planned.slots, planned.counts, strict=True)
        if one is sequence and slot == sequence.slot
    )
    if len(sequence.tokens) != sequence.prompt_tokens + sequence.output_tokens:
        yield f"{_name(sequence)} has {len(sequence.tokens)} tokens, not its prompt and {sequence.output_tokens}"
    if sequence.planned_tokens - sequence.computed_tokens != flying:
        yield f"{_name(sequence)} has {flying} tokens in flight, not planned less computed"
    if sequence.planned_tokens > sequence.plan_limit_tokens:
        yield f"{_name(sequence)} is planned beyond its limit"
    if (sequence.phase is Phase.PREFILLING) != (sequence.planned_tokens < sequence.prefill_tokens):
        yield f"{_name(sequence)} is {sequence.phase} with {sequence.planned_tokens} of {sequence.prefill_tokens} planned"
    if len(sequence.pages) != state.running.pages.pages_for(sequence.planned_tokens):
        yield f"{_name(sequence)} owns {len(sequence.pages)} pages for {sequence.planned_tokens} planned tokens"


def _name(sequence: Sequence) -> str:
    return f"choice {sequence.choice} of request {sequence.request}"
