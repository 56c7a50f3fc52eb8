"""The scheduler's process.

Must not know: text, tensors, HTTP.
"""

import os
import time
from types import MappingProxyType
from typing import Final

import trio

from layered_llm.domain.ids import TextId
from layered_llm.domain.messages.supervision import Role
from layered_llm.scheduling.policy import AdmissionOrder, SchedulingPolicy
from layered_llm.service.processes.engine_process import EngineArguments, run_engine_process
from layered_llm.service.settings.settings import Settings
from layered_llm.service.workers.runtime_ranks import RuntimeFailed, RuntimeRanks
from layered_llm.service.workers.schedule_trace import TraceFileError, open_trace
from layered_llm.service.workers.scheduler_figures import SchedulerFigures
from layered_llm.service.workers.scheduler_loop import SchedulerLinks, SchedulerLoop, StepOverdue
from layered_llm.transport.addresses import LinkAddresses
from layered_llm.transport.link_specs import ENGINE_SUPERVISOR, SCHEDULER_RUNTIME, TEXT_SCHEDULER, Links
from layered_llm.transport.links import ZmqLinks
from layered_llm.transport.outbox import ENGINE_OUTBOX_MESSAGES, Outbox
from layered_llm.transport.peers import peer_name
from layered_llm.transport.zmq_socket import open_context

_ORDERS: Final = MappingProxyType(
    {
        "fcfs": AdmissionOrder.FIRST_COME,
        "priority": AdmissionOrder.PRIORITY,
        "lpm": AdmissionOrder.LONGEST_PREFIX,
    }
)


def scheduling_policy(settings: Settings) -> SchedulingPolicy:
    """The operator's settings as the scheduler's policy."""
    return SchedulingPolicy(
        max_step_tokens=settings.chunked_prefill_size,
        max_running_choices=settings.max_running_requests,
        max_queued_requests=settings.max_queued_requests,
        max_unacknowledged_steps=settings.max_unacknowledged_steps,
        max_steps_in_flight=2 if settings.overlap_schedule else 1,
        prefix_cache=settings.prefix_caching,
        shares_prefixes=settings.share_prefix_cache,
        admission_order=_ORDERS[settings.schedule_policy],
        max_streams=settings.max_streams,
        max_streams_per_tenant=settings.max_streams_per_key,
        max_queue_us=None if settings.queue_timeout_s is None else round(1e6 * settings.queue_timeout_s),
        max_token_gap_us=round(1_000 * settings.max_token_gap_ms) or None,
    )


async def work_scheduler(
    links: Links,
    addresses: LinkAddresses,
    policy: SchedulingPolicy,
    *,
    text_workers: int = 1,
    ranks: int = 1,
    trace_file: str | None = None,
    is_restart: bool = False,
) -> None:
    """Schedules until told to stop. Raises TraceFileError, RuntimeFailed and StepOverdue."""
    rank_names = tuple(peer_name(Role.RUNTIME, rank) for rank in range(ranks))
    with (
        links.bind(TEXT_SCHEDULER, addresses.scheduler) as texts,
        links.bind_group(SCHEDULER_RUNTIME, addresses.runtime, rank_names) as runtime,
        links.connect(ENGINE_SUPERVISOR, addresses.supervisor, peer_name(Role.SCHEDULER, 0)) as supervisor,
        open_trace(trace_file, now_s=trio.current_time(), monotonic_s=time.monotonic(), is_restart=is_restart) as trace,
    ):
        await SchedulerLoop(
            pid=os.getpid(),
            links=SchedulerLinks(texts=texts, runtime=runtime, supervisor=supervisor),
            to_runtime=Outbox(ENGINE_OUTBOX_MESSAGES),
            to_supervisor=Outbox(ENGINE_OUTBOX_MESSAGES),
            policy=policy,
            figures=SchedulerFigures(policy.max_step_tokens),
            trace=trace,
            ranks=RuntimeRanks(rank_names),
            texts={peer_name(Role.TEXT, index): TextId(index) for index in range(text_workers)},
        ).run()


async def _work(arguments: EngineArguments) -> None:
    settings = arguments.settings
    with open_context() as context:
        links = ZmqLinks(context, context)
        await work_scheduler(
            links,
            arguments.addresses,
            scheduling_policy(settings),
            text_workers=settings.num_tokenizers,
            ranks=settings.tensor_parallel_size,
            trace_file=settings.trace_file,
            is_restart=arguments.generation > 1,
        )


def main() -> None:
    """The process's entry."""
    expected = (TraceFileError, RuntimeFailed, StepOverdue)
    run_engine_process(Role.SCHEDULER, lambda arguments: trio.run(_work, arguments), expected=expected)


if __name__ == "__main__":
    main()
