"""Both ends of every link: who binds, who connects, and which messages go which way.

Must not know: what a message means, who runs in which process.

The composition works with the protocol `Links`, so that the same processes, loops and cores run over ZMQ sockets and over the
in-memory links of `layered_llm.testing`.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import attrs

from layered_llm.domain.messages.api_text import ApiToText, TextToApi
from layered_llm.domain.messages.scheduler_runtime import RuntimeToScheduler, SchedulerToRuntime
from layered_llm.domain.messages.supervision import (
    ApiToSupervisor,
    EngineToSupervisor,
    SupervisorToApi,
    SupervisorToEngine,
)
from layered_llm.domain.messages.text_scheduler import SchedulerToText, TextToScheduler
from layered_llm.transport import codec
from layered_llm.transport.codec import Codec
from layered_llm.transport.links import (
    BlockingLink,
    DealerLink,
    NamedPeerLink,
    RouterLink,
    bind_named,
    bind_router,
    connect_blocking,
    connect_dealer,
)
from layered_llm.transport.ports import MessageLink, PeerLink
from layered_llm.transport.zmq_socket import MessageContext

RUNTIME_NAME = "runtime-0"


class Links(Protocol):
    """Opens ends of links by address. Each end is closed when its `with` block is left."""

    def bind_text_for_apis(self, address: str) -> AbstractContextManager[PeerLink[TextToApi, ApiToText]]: ...

    def connect_api_to_text(self, address: str, name: str) -> AbstractContextManager[MessageLink[ApiToText, TextToApi]]: ...

    def bind_scheduler_for_texts(self, address: str) -> AbstractContextManager[PeerLink[SchedulerToText, TextToScheduler]]: ...

    def connect_text_to_scheduler(
        self, address: str, name: str
    ) -> AbstractContextManager[MessageLink[TextToScheduler, SchedulerToText]]: ...

    def bind_scheduler_for_runtime(
        self, address: str
    ) -> AbstractContextManager[MessageLink[SchedulerToRuntime, RuntimeToScheduler]]: ...

    def bind_supervisor_for_apis(self, address: str) -> AbstractContextManager[PeerLink[SupervisorToApi, ApiToSupervisor]]: ...

    def connect_api_to_supervisor(
        self, address: str, name: str
    ) -> AbstractContextManager[MessageLink[ApiToSupervisor, SupervisorToApi]]: ...

    def bind_supervisor_for_engine(
        self, address: str
    ) -> AbstractContextManager[PeerLink[SupervisorToEngine, EngineToSupervisor]]: ...

    def connect_engine_to_supervisor(
        self, address: str, name: str
    ) -> AbstractContextManager[MessageLink[EngineToSupervisor, SupervisorToEngine]]: ...


@attrs.frozen
class ZmqLinks:
    """Implements `Links` over the sockets of a context."""

    _context: MessageContext
    _runtime_context: MessageContext
    """The same one, or one for the link to the runtime alone, which can then be shut down to end a blocked thread."""

    def bind_text_for_apis(self, address: str) -> RouterLink[TextToApi, ApiToText]:
        return bind_router(self._context, address, codec=Codec(outbound=codec.TEXT_TO_API, inbound=codec.API_TO_TEXT))

    def connect_api_to_text(self, address: str, name: str) -> DealerLink[ApiToText, TextToApi]:
        ends = Codec(outbound=codec.API_TO_TEXT, inbound=codec.TEXT_TO_API)
        return connect_dealer(self._context, address, name=name, codec=ends)

    def bind_scheduler_for_texts(self, address: str) -> RouterLink[SchedulerToText, TextToScheduler]:
        ends = Codec(outbound=codec.SCHEDULER_TO_TEXT, inbound=codec.TEXT_TO_SCHEDULER)
        return bind_router(self._context, address, codec=ends)

    def connect_text_to_scheduler(self, address: str, name: str) -> DealerLink[TextToScheduler, SchedulerToText]:
        ends = Codec(outbound=codec.TEXT_TO_SCHEDULER, inbound=codec.SCHEDULER_TO_TEXT)
        return connect_dealer(self._context, address, name=name, codec=ends)

    def bind_scheduler_for_runtime(self, address: str) -> NamedPeerLink[SchedulerToRuntime, RuntimeToScheduler]:
        ends = Codec(outbound=codec.SCHEDULER_TO_RUNTIME, inbound=codec.RUNTIME_TO_SCHEDULER)
        return bind_named(self._runtime_context, address, peer=RUNTIME_NAME, codec=ends)

    def connect_runtime_to_scheduler(self, address: str) -> BlockingLink[RuntimeToScheduler, SchedulerToRuntime]:
        """For the thread that blocks."""
        ends = Codec(outbound=codec.RUNTIME_TO_SCHEDULER, inbound=codec.SCHEDULER_TO_RUNTIME)
        return connect_blocking(self._runtime_context, address, name=RUNTIME_NAME, codec=ends)

    def bind_supervisor_for_apis(self, address: str) -> RouterLink[SupervisorToApi, ApiToSupervisor]:
        ends = Codec(outbound=codec.SUPERVISOR_TO_API, inbound=codec.API_TO_SUPERVISOR)
        return bind_router(self._context, address, codec=ends)

    def connect_api_to_supervisor(self, address: str, name: str) -> DealerLink[ApiToSupervisor, SupervisorToApi]:
        ends = Codec(outbound=codec.API_TO_SUPERVISOR, inbound=codec.SUPERVISOR_TO_API)
        return connect_dealer(self._context, address, name=name, codec=ends)

    def bind_supervisor_for_engine(self, address: str) -> RouterLink[SupervisorToEngine, EngineToSupervisor]:
        ends = Codec(outbound=codec.SUPERVISOR_TO_ENGINE, inbound=codec.ENGINE_TO_SUPERVISOR)
        return bind_router(self._context, address, codec=ends)

    def connect_engine_to_supervisor(self, address: str, name: str) -> DealerLink[EngineToSupervisor, SupervisorToEngine]:
        ends = Codec(outbound=codec.ENGINE_TO_SUPERVISOR, inbound=codec.SUPERVISOR_TO_ENGINE)
        return connect_dealer(self._context, address, name=name, codec=ends)
