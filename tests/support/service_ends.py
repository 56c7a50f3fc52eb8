"""The far ends of a service loop's links, and messages to speak on them."""

import contextlib
from collections.abc import AsyncIterator, Iterable

import attrs
import trio

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId, RequestId, StepId, compose_request_id
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import ApiToText, Submit, TextToApi
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.supervision import EngineSized, EngineToSupervisor, Heartbeat, SupervisorToEngine
from layered_llm.domain.messages.text_scheduler import RequestsFinished, SchedulerToText, TextToScheduler, TokensEmitted
from layered_llm.domain.sampling import SamplingParams
from layered_llm.service.workers.preparations import PrepareLong, TextHelpers
from layered_llm.service.workers.template_renderer import Renderer, RendersHere
from layered_llm.service.workers.text import serve_text
from layered_llm.testing.byte_text import VOCABULARY_SIZE, byte_text_files
from layered_llm.testing.memory_links import MemoryDealerLink, MemoryLinks, MemoryPeerLink
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import API_TEXT, ENGINE_SUPERVISOR, TEXT_SCHEDULER
from layered_llm.transport.peers import api_peer_name

ADDRESSES = LinkAddresses.in_process("engine", generation=1)
TEXT_NAME = "text-0"
TEST_S = 2000.0
"""Virtual time in which a test must be over: heartbeats would keep one that waits in vain going for ever."""
LIMITS = EngineLimits(context_tokens=8192, vocabulary_size=VOCABULARY_SIZE)


def submit(api: ApiId, counter: int, text: str = "hello", **params: object) -> Submit:
    return Submit(
        request=compose_request_id(api, counter),
        prompt=Prompt.of_text(text),
        params=SamplingParams(**{"max_tokens": 8, **params}),  # type: ignore[arg-type]  # checked by the class
        seed=1,
    )


def tokens(step: int, rows: Iterable[tuple[RequestId, int, int]]) -> TokensEmitted:
    """Rows of (request, position, token) for choice 0."""
    table = list(rows)
    return TokensEmitted(
        step=StepId(step),
        requests=pack_i64(row[0] for row in table),
        choices=pack_i32(0 for _ in table),
        positions=pack_i32(row[1] for row in table),
        token_ids=pack_i32(row[2] for row in table),
        cached_tokens=pack_i32(-1 if row[1] else 0 for row in table),
    )


def finished(request: RequestId, reason: FinishReason, output_tokens: int) -> RequestsFinished:
    return RequestsFinished(
        requests=pack_i64([request]),
        choices=pack_i32([0]),
        reasons=pack_i8([reason]),
        output_tokens=pack_i32([output_tokens]),
    )


@attrs.define(eq=False, kw_only=True)
class TextEnds:
    """What stands around a text worker."""

    links: MemoryLinks
    apis: dict[ApiId, MemoryDealerLink[ApiToText, TextToApi]]
    scheduler: MemoryPeerLink[SchedulerToText, TextToScheduler]
    supervisor: MemoryPeerLink[SupervisorToEngine, EngineToSupervisor]
    worker: trio.Nursery
    _heard: list[EngineToSupervisor] = attrs.field(factory=list)
    _ordered: list[TextToScheduler] = attrs.field(factory=list)

    async def reported(self) -> EngineToSupervisor:
        """The next word to the supervisor that is no heartbeat."""
        while not self._heard:
            received = [message for _peer, message in await self.supervisor.receive()]
            self._heard.extend(message for message in received if not isinstance(message, Heartbeat))  # type: ignore[misc]  # none is garbled
        return self._heard.pop(0)

    async def ordered(self) -> TextToScheduler:
        """The next word to the scheduler."""
        while not self._ordered:
            self._ordered.extend(message for _peer, message in await self.scheduler.receive())  # type: ignore[misc]  # as above
        return self._ordered.pop(0)

    def order(self, message: SupervisorToEngine) -> None:
        self.supervisor.send_nowait(TEXT_NAME, message)

    def answer(self, *messages: SchedulerToText) -> None:
        for message in messages:
            self.scheduler.send_nowait(TEXT_NAME, message)


@contextlib.asynccontextmanager
async def text_ends(
    *apis: ApiId,
    prepare_long: PrepareLong,
    renderer: Renderer | None = None,
    high_water_mark: int = 100,
    is_sized: bool = True,
) -> AsyncIterator[TextEnds]:
    """A text worker that runs, between fake peers."""
    links = MemoryLinks(high_water_mark=high_water_mark)
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        scheduler = enter(links.bind(TEXT_SCHEDULER, ADDRESSES.scheduler))
        supervisor = enter(links.bind(ENGINE_SUPERVISOR, ADDRESSES.supervisor))
        connected = {api: enter(links.connect(API_TEXT, ADDRESSES.text(0), api_peer_name(api))) for api in apis}
        stack.enter_context(trio.fail_after(TEST_S))
        async with trio.open_nursery() as nursery:
            files = byte_text_files()
            helpers = TextHelpers(prepare_long=prepare_long, renderer=renderer or RendersHere(files.template))
            nursery.start_soon(serve_text, links, ADDRESSES, 0, files, helpers)

            ends = TextEnds(links=links, apis=connected, scheduler=scheduler, supervisor=supervisor, worker=nursery)
            await ends.reported()
            if is_sized:
                ends.order(EngineSized(limits=LIMITS))
            yield ends
            nursery.cancel_scope.cancel()
