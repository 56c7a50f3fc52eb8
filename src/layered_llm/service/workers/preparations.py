"""Preparations of requests and questions: at once, or by turns between tenants, on the loop, in threads or by a renderer.

Must not know: links, what a preparation comes to.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from layered_llm.domain.ids import RequestId
from layered_llm.service.workers.template_renderer import Renderer
from layered_llm.text.core import Outcome, Work
from layered_llm.text.preparation import LONG_WORK_CHARS
from layered_llm.transport.fair_places import FairPlaces, Place

HUGE_WORK_CHARS: Final = 64_000
"""Some 30 ms of tokenizing, 150 ms of the dearest text. What costs more waits for its like only, and delays nothing shorter."""
_SHORT_WORK_CHARS: Final = 200
"""Taking a message and sending on what came of it, as so many characters to tokenize."""
_START_RENDERER_S: Final = 0.5
"""After the engine is ready, whose start has the processors until then."""

_GONE: Final = "the request is gone"

PrepareLong = Callable[[Work], Awaitable[Outcome]]


async def prepare_in_thread(work: Work) -> Outcome:
    """The tokenizer releases the interpreter while it works."""
    return await trio.to_thread.run_sync(work.run)


@attrs.frozen(kw_only=True)
class TextHelpers:
    """Who does what would hold up every stream of a worker, or what might not end."""

    prepare_long: PrepareLong
    renderer: Renderer


@attrs.define(eq=False, kw_only=True)
class Preparations:
    """The work that waits or is done aside."""

    _helpers: TextHelpers
    _is_wanted: Callable[[RequestId, int], bool]
    """Whether somebody still waits for what the work for an incarnation of a request comes to."""
    _done: Callable[[RequestId, Outcome], None]
    """Takes what it came to."""
    _rendering: FairPlaces = attrs.field(init=False, factory=lambda: FairPlaces(1))
    _short: FairPlaces = attrs.field(init=False, factory=lambda: FairPlaces(1))
    """For what is done on the loop, when more came at once than it may do between two checkpoints."""
    _long: FairPlaces = attrs.field(init=False, factory=lambda: FairPlaces(1))
    _huge: FairPlaces = attrs.field(init=False, factory=lambda: FairPlaces(1))
    """Both in threads; more of them would take the cores from the runtime."""
    _aside: dict[tuple[RequestId, int], trio.CancelScope] = attrs.field(init=False, factory=dict)
    """Around the work that waits for a place or has one, by request and incarnation."""

    def begin(self, work: Work, spent_chars: int, nursery: trio.Nursery) -> int:
        """Does short work at once, unless others wait or `spent_chars` of work were done since the last checkpoint.

        Returns what it cost. All else is done by turns between tenants.
        """
        if not self._is_wanted(work.request, work.incarnation):
            return 0
        if work.conversation is None:
            cost_chars = _SHORT_WORK_CHARS + work.cost_chars
            if cost_chars + spent_chars <= _SHORT_WORK_CHARS + LONG_WORK_CHARS and not self._short.has_waiting:
                self._done(work.request, work.run())
                return cost_chars
        place = self._place(work)  # here, so that what comes first is first among its tenant's
        nursery.start_soon(self._work_aside, work, place)
        return 0

    def leave(self, request: RequestId, incarnation: int) -> None:
        """Nobody waits for it any more: it gives up its turn, or its place when what runs in a thread is done."""
        scope = self._aside.get((request, incarnation))
        if scope is not None:
            scope.cancel(reason=_GONE)

    def leave_unwanted(self) -> None:
        """The same for all requests that nobody waits for any more."""
        for key, scope in self._aside.items():
            if not self._is_wanted(*key):
                scope.cancel(reason=_GONE)

    async def start_renderer(self) -> None:
        """Has the renderer ready before the first conversation comes."""
        await trio.sleep(_START_RENDERER_S)
        async with self._rendering.enter("", 1):
            await self._helpers.renderer.start()

    async def _work_aside(self, work: Work, place: Place) -> None:
        key = work.request, work.incarnation
        with trio.CancelScope() as scope:
            if not self._is_wanted(*key):
                scope.cancel(reason=_GONE)
            self._aside[key] = scope
            try:
                outcome = await self._in_turn(work, place)
            finally:
                del self._aside[key]
            self._done(work.request, outcome)

    async def _in_turn(self, work: Work, place: Place) -> Outcome:
        conversation = work.conversation
        if conversation is not None:
            async with place:
                work = work.with_rendered(await self._helpers.renderer.render(conversation))
            place = self._place(work)
        async with place:
            return await self._helpers.prepare_long(work) if work.cost_chars > LONG_WORK_CHARS else work.run()

    def _place(self, work: Work) -> Place:
        """Where its next part is done. What a template costs is not known before, but bounded."""
        if work.conversation is not None:
            return self._rendering.enter(work.tenant, 1)
        cost_chars = work.cost_chars
        if cost_chars > LONG_WORK_CHARS:
            return (self._long if cost_chars <= HUGE_WORK_CHARS else self._huge).enter(work.tenant, cost_chars)
        return self._short.enter(work.tenant, _SHORT_WORK_CHARS + cost_chars)
