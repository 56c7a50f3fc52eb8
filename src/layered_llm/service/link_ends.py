"""Both ends of every link: who binds, who connects, and which messages go which way.

Must not know: what a message means, who runs in which process.
"""

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
    RouterLink,
    bind_dealer,
    bind_router,
    connect_blocking,
    connect_dealer,
)
from layered_llm.transport.zmq_socket import MessageContext

RUNTIME_NAME = "runtime-0"


def bind_text_for_apis(context: MessageContext, address: str) -> RouterLink[TextToApi, ApiToText]:
    return bind_router(context, address, codec=Codec(outbound=codec.TEXT_TO_API, inbound=codec.API_TO_TEXT))


def connect_api_to_text(context: MessageContext, address: str, name: str) -> DealerLink[ApiToText, TextToApi]:
    return connect_dealer(context, address, name=name, codec=Codec(outbound=codec.API_TO_TEXT, inbound=codec.TEXT_TO_API))


def bind_scheduler_for_texts(context: MessageContext, address: str) -> RouterLink[SchedulerToText, TextToScheduler]:
    return bind_router(context, address, codec=Codec(outbound=codec.SCHEDULER_TO_TEXT, inbound=codec.TEXT_TO_SCHEDULER))


def connect_text_to_scheduler(context: MessageContext, address: str, name: str) -> DealerLink[TextToScheduler, SchedulerToText]:
    ends = Codec(outbound=codec.TEXT_TO_SCHEDULER, inbound=codec.SCHEDULER_TO_TEXT)
    return connect_dealer(context, address, name=name, codec=ends)


def bind_scheduler_for_runtime(context: MessageContext, address: str) -> DealerLink[SchedulerToRuntime, RuntimeToScheduler]:
    return bind_dealer(context, address, codec=Codec(outbound=codec.SCHEDULER_TO_RUNTIME, inbound=codec.RUNTIME_TO_SCHEDULER))


def connect_runtime_to_scheduler(context: MessageContext, address: str) -> BlockingLink[RuntimeToScheduler, SchedulerToRuntime]:
    ends = Codec(outbound=codec.RUNTIME_TO_SCHEDULER, inbound=codec.SCHEDULER_TO_RUNTIME)
    return connect_blocking(context, address, name=RUNTIME_NAME, codec=ends)


def bind_supervisor_for_apis(context: MessageContext, address: str) -> RouterLink[SupervisorToApi, ApiToSupervisor]:
    return bind_router(context, address, codec=Codec(outbound=codec.SUPERVISOR_TO_API, inbound=codec.API_TO_SUPERVISOR))


def connect_api_to_supervisor(context: MessageContext, address: str, name: str) -> DealerLink[ApiToSupervisor, SupervisorToApi]:
    ends = Codec(outbound=codec.API_TO_SUPERVISOR, inbound=codec.SUPERVISOR_TO_API)
    return connect_dealer(context, address, name=name, codec=ends)


def bind_supervisor_for_engine(context: MessageContext, address: str) -> RouterLink[SupervisorToEngine, EngineToSupervisor]:
    ends = Codec(outbound=codec.SUPERVISOR_TO_ENGINE, inbound=codec.ENGINE_TO_SUPERVISOR)
    return bind_router(context, address, codec=ends)


def connect_engine_to_supervisor(
    context: MessageContext, address: str, name: str
) -> DealerLink[EngineToSupervisor, SupervisorToEngine]:
    ends = Codec(outbound=codec.ENGINE_TO_SUPERVISOR, inbound=codec.SUPERVISOR_TO_ENGINE)
    return connect_dealer(context, address, name=name, codec=ends)
