"""What a message costs between two ends of a link: the codec alone, round trips, and one-way throughput.

    python benchmarks/links.py [--round-trips N] [--messages N] [--repeat N]

Each figure is the best of `--repeat` runs, so that another load on the machine shows as little as possible. The message of the
links is a decode step for 64 choices. The far end is a child process for ipc, and a task or a thread for inproc.
"""

import argparse
import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from layered_llm.domain.columns import pack_i8, pack_i32, pack_i64
from layered_llm.domain.ids import RequestId, StepId
from layered_llm.domain.messages.api_text import Submit, TextEmitted
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.domain.messages.text_scheduler import TokensEmitted
from layered_llm.domain.sampling import SamplingParams
from layered_llm.transport.codec import Codec
from layered_llm.transport.link_specs import API_TEXT, SCHEDULER_RUNTIME, TEXT_SCHEDULER, LinkSpec, Tags
from layered_llm.transport.links import BlockingLink, ZmqLinks
from layered_llm.transport.ports import GroupLink, LinkClosed, MessageLink
from layered_llm.transport.zmq_socket import MessageContext, open_context

ROWS: Final = 64
CODEC_CALLS: Final = 2000
MICROSECONDS: Final = 1e6
ONES: Final = pack_i32([1] * ROWS)

STEP: Final = ExecuteStep(
    step=StepId(1),
    retired=b"",
    opened=(),
    page_slots=pack_i32(range(ROWS // 16)),
    page_counts=pack_i32([1] * (ROWS // 16)),
    page_offsets=pack_i32(range(ROWS // 16)),
    page_ids=pack_i32(range(ROWS // 16)),
    slots=pack_i32(range(ROWS)),
    starts=pack_i32(range(ROWS)),
    counts=ONES,
    samples=pack_i8([1] * ROWS),
)
REQUESTS: Final = pack_i64(range(ROWS))
SAMPLES: Final[tuple[tuple[str, Tags[Any], object], ...]] = (
    (
        "Submit, 1,000 token ids",
        API_TEXT.from_connected,
        Submit(request=RequestId(1), prompt=Prompt.of_token_ids(range(1000)), params=SamplingParams(), seed=1),
    ),
    (f"ExecuteStep, {ROWS} rows", SCHEDULER_RUNTIME.from_bound, STEP),
    (
        f"StepCompleted, {ROWS} tokens",
        SCHEDULER_RUNTIME.from_connected,
        StepCompleted(step=StepId(1), token_ids=ONES, device_us=1, open_slots=ROWS),
    ),
    (
        f"TokensEmitted, {ROWS} rows",
        TEXT_SCHEDULER.from_bound,
        TokensEmitted(step=StepId(1), requests=REQUESTS, choices=ONES, positions=ONES, token_ids=ONES, cached_tokens=ONES),
    ),
    (
        f"TextEmitted, {ROWS} rows",
        API_TEXT.from_bound,
        TextEmitted(
            requests=REQUESTS,
            choices=ONES,
            texts=(" word",) * ROWS,
            token_counts=ONES,
            token_ids=ONES,
            finish_reasons=bytes(ROWS),
            matched_stops=(None,) * ROWS,
            ended=b"",
            ended_prompt_tokens=b"",
            ended_completion_tokens=b"",
            ended_cached_tokens=b"",
            ended_errors=(),
        ),
    ),
)

STEPS: Final = LinkSpec[ExecuteStep, ExecuteStep](
    from_bound=SCHEDULER_RUNTIME.from_bound, from_connected=SCHEDULER_RUNTIME.from_bound
)
"""Steps both ways, so that both directions cost the same."""
FAR: Final = "far"

NearLink = GroupLink[ExecuteStep, ExecuteStep]
Measure = Callable[[NearLink], Awaitable[float]]


async def echo_in_trio(link: MessageLink[ExecuteStep, ExecuteStep]) -> None:
    """The far end as another trio task or process would be it."""
    while True:
        for step in await link.receive():
            await link.send(step)


def echo_blocking(link: BlockingLink[ExecuteStep, ExecuteStep]) -> None:
    """The far end as the runtime is it."""
    while True:
        link.send(link.receive())


def serve_far_end(kind: str, address: str) -> None:
    """The whole life of a child process; its parent ends it."""
    with open_context() as context:
        if kind == "trio":
            trio.run(_echo_connected, context, address)
        else:
            with ZmqLinks(context, context).connect_blocking(STEPS, address, FAR) as link:
                echo_blocking(link)


async def _echo_connected(context: MessageContext, address: str) -> None:
    with ZmqLinks(context, context).connect(STEPS, address, FAR) as link:
        await echo_in_trio(link)


async def round_trip_us(link: NearLink, *, count: int) -> float:
    """Microseconds from the sending of a step to the receipt of its echo."""
    started = time.perf_counter()
    for _ in range(count):
        await link.send(STEP)
        await link.receive()
    return (time.perf_counter() - started) / count * MICROSECONDS


async def pipelined_us(link: NearLink, *, count: int) -> float:
    """Microseconds for each step and its echo when as many are under way as the link takes."""
    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send_steps, link, count)
        received = 0
        while received < count:
            received += len(await link.receive())
    return (time.perf_counter() - started) / count * MICROSECONDS


async def _send_steps(link: NearLink, count: int) -> None:
    for _ in range(count):
        await link.send(STEP)


async def over_ipc(kind: str, measure: Measure) -> float:
    """`measure` against a far end in a child process."""
    with tempfile.TemporaryDirectory(prefix="llm-") as directory, open_context() as context:
        address = f"ipc://{directory}/link"
        link = ZmqLinks(context, context).bind_group(STEPS, address, [FAR])
        with far_process(kind, address):
            await round_trip_us(link, count=10)
            return await measure(link)


@contextmanager
def far_process(kind: str, address: str) -> Iterator[None]:
    """A child that serves `address` until the block is left."""
    child = subprocess.Popen([sys.executable, __file__, "--far-end", kind, address])
    try:
        yield
    finally:
        child.kill()
        child.wait()


async def over_inproc(kind: str, measure: Measure) -> float:
    """`measure` against a far end in this process."""
    with open_context() as context:
        link = ZmqLinks(context, context).bind_group(STEPS, "inproc://link", [FAR])
        async with trio.open_nursery() as nursery:
            if kind == "trio":
                nursery.start_soon(_echo_connected, context, "inproc://link")
            else:
                nursery.start_soon(trio.to_thread.run_sync, _echo_in_thread, context)
            await round_trip_us(link, count=10)
            figure = await measure(link)
            nursery.cancel_scope.cancel()
            context.shutdown()
        return figure


def _echo_in_thread(context: MessageContext) -> None:
    with ZmqLinks(context, context).connect_blocking(STEPS, "inproc://link", FAR) as link:
        try:
            echo_blocking(link)
        except LinkClosed:
            return


def codec_row(name: str, table: Tags[Any], message: object, repeat: int) -> tuple[str, ...]:
    """Encoding and decoding of one message."""
    end: Codec[Any, Any] = Codec(outbound=table, inbound=table)
    frames = end.encode(message)
    encode_us = min(_call_us(functools.partial(end.encode, message)) for _ in range(repeat))
    decode_us = min(_call_us(functools.partial(end.decode, frames)) for _ in range(repeat))
    return name, f"{len(frames[1]):,}", f"{encode_us:.1f}", f"{decode_us:.1f}"


def _call_us(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CODEC_CALLS):
        function()
    return (time.perf_counter() - started) / CODEC_CALLS * MICROSECONDS


def link_row(scheme: str, kind: str, arguments: argparse.Namespace) -> tuple[str, ...]:
    """Round trip and throughput of one kind of link."""
    over = over_ipc if scheme == "ipc" else over_inproc
    round_trip = functools.partial(round_trip_us, count=arguments.round_trips)
    pipelined = functools.partial(pipelined_us, count=arguments.messages)
    round_us = min(trio.run(over, kind, round_trip) for _ in range(arguments.repeat))
    each_us = min(trio.run(over, kind, pipelined) for _ in range(arguments.repeat))
    return f"trio - {kind}", scheme, f"{round_us:.0f}", f"{MICROSECONDS / each_us:,.0f}"


def print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *rest]))
    print()


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trips", type=int, default=2000, help="round trips of one run (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=5000, help="messages of one throughput run (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the best counts (default: %(default)s)")
    parser.add_argument("--far-end", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.far_end is not None:
        serve_far_end(*arguments.far_end)
        return
    print_table(
        ("codec", "bytes", "encode µs", "decode µs"), [codec_row(*sample, repeat=arguments.repeat) for sample in SAMPLES]
    )
    kinds = [("ipc", "trio"), ("ipc", "blocking"), ("inproc", "trio"), ("inproc", "blocking")]
    print_table(("near - far end", "over", "round trip µs", "echoed steps/s"), [link_row(*kind, arguments) for kind in kinds])


if __name__ == "__main__":
    main()
