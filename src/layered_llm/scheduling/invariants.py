"""Recomputes from scratch what must always be true of the scheduler's state.

Must not know: how the state came about. It reads, and changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from layered_llm.domain.ids import PageId
from layered_llm.scheduling.pages import IdT, PoolCensus, count_everywhere
from layered_llm.scheduling.prefix_tree import TOKEN_BYTES, Node
from layered_llm.scheduling.sequences import Phase, Sequence
from layered_llm.scheduling.statistics import SchedulerState


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
    unended = [one for request in state.open.by_id.values() for one in request.sequences if one.phase is not Phase.ENDED]
    if placed != Counter(unended):
        yield f"{len(unended)} choices of open requests have not ended, {placed.total()} are kept"
    for request_id, request in state.open.by_id.items():
        still_open = sum(one.phase is not Phase.ENDED for one in request.sequences)
        if not still_open or still_open != request.open_choices:
            yield f"request {request_id} counts {request.open_choices} open choices, {still_open} have not ended"
    waiting = Counter(one.request for one in places[Phase.WAITING])
    if waiting != Counter(state.waiting.choices_by_request()):
        yield "waiting choices are not counted right by request"
    if state.open.streams_by_tenant() != Counter(
        request.sequences[0].admit.placement.tenant for request in state.open.by_id.values()
    ):
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
    places = [*(one.place for one in sequences if one.place is not None), *pages.places_to_unlock()]
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
        if node.cache_root != sequence.cache_root:
            yield f"{_name(sequence)} shares pages of {node.cache_root}"
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
    # A row that ended the prefill and yielded nothing leaves the last token to be computed again.
    is_prefilled = sequence.planned_tokens >= sequence.prefill_tokens - (sequence.phase is Phase.DECODING)
    if is_prefilled is (sequence.phase is Phase.PREFILLING):
        yield f"{_name(sequence)} is {sequence.phase} with {sequence.planned_tokens} of {sequence.prefill_tokens} planned"
    if len(sequence.pages) != state.running.pages.pages_for(max(sequence.planned_tokens, sequence.paged_tokens)):
        yield f"{_name(sequence)} owns {len(sequence.pages)} pages for {sequence.planned_tokens} planned tokens"


def _name(sequence: Sequence) -> str:
    return f"choice {sequence.choice} of request {sequence.request}"


def tree_violations(
    nodes: Iterable[Node], places: Iterable[Node], *, page_size_tokens: int, evictable_pages: int
) -> Iterator[str]:
    """One sentence for each invariant that does not hold. `places` has one entry for each lock that somebody holds."""
    nodes = list(nodes)
    page_bytes = page_size_tokens * TOKEN_BYTES
    locks = _expected_locks(places)
    for node in nodes:
        if node.locks != locks[node]:
            yield f"{_node_name(node)} has {node.locks} locks, {locks[node]} are held in it or below"
        if len(node.key) != len(node.pages) * page_bytes or (node.parent is not None) != bool(node.pages):
            yield f"{_node_name(node)} has {len(node.pages)} pages for {len(node.key)} bytes of tokens"
        if any(child.parent is not node or child.key[:page_bytes] != key for key, child in node.children.items()):
            yield f"{_node_name(node)} has a child that is not its own or is kept under another key"
        if node.parent is None and not node.locks and not node.children:
            yield f"{_node_name(node)} is an empty tree that nobody uses"
    if locks.keys() - set(nodes):
        yield "somebody holds a place that is not in the prefix tree"
    if len({node.last_use for node in nodes if node.last_use}) != sum(bool(node.last_use) for node in nodes):
        yield "two nodes of the prefix tree were used last at one time"
    unlocked = sum(len(node.pages) for node in nodes if not node.locks)
    if unlocked != evictable_pages:
        yield f"{evictable_pages} pages are counted as evictable, {unlocked} are"


def _expected_locks(places: Iterable[Node]) -> Counter[Node]:
    locks: Counter[Node] = Counter()
    for place in places:
        node: Node | None = place
        while node is not None:
            locks[node] += 1
            node = node.parent
    return locks


def _node_name(node: Node) -> str:
    return f"the node of pages {node.pages} in the tree of {node.cache_root}"
