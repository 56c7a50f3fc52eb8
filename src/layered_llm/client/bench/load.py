"""Sends requests at the right times: a closed loop of clients, or an open loop of arrivals.

Must not know: HTTP, prompts, statistics.

In a closed loop each client waits for its answer before it asks again, so a slow server is asked less. In an open loop requests
come when they come, as those of independent users do, and a slow server sees them pile up.
"""

from collections.abc import Iterator
from random import Random
from typing import Protocol

import attrs
import trio

from layered_llm.client.bench.prompts import Prompt
from layered_llm.client.bench.records import RequestRecord, Tally


@attrs.frozen(kw_only=True)
class PlannedRequest:
    """One request to send."""

    index: int
    due_s: float
    """On trio's clock."""
    prompt: Prompt


class Sender(Protocol):
    """Sends one request and watches its answer."""

    async def send(self, request: PlannedRequest, tally: Tally) -> RequestRecord:
        """Reports each chunk with output to `tally`. A failure of the server is a record, not an exception."""


@attrs.frozen(kw_only=True)
class Limits:
    """Where a run ends: no request is begun after either."""

    requests: int | None
    duration_s: float | None


@attrs.frozen(kw_only=True)
class ClosedLoop:
    """`clients` clients, each with one request at a time."""

    clients: int


@attrs.frozen(kw_only=True)
class OpenLoop:
    """A Poisson process of `rate_per_s` requests, whatever becomes of them."""

    rate_per_s: float


Pattern = ClosedLoop | OpenLoop


def poisson_arrivals(random: Random, rate_per_s: float) -> Iterator[float]:
    """Arrival times in seconds from the start of a Poisson process: gaps are exponential with mean 1 / `rate_per_s`."""
    at_s = 0.0
    while True:
        at_s += random.expovariate(rate_per_s)
        yield at_s


async def run_closed_loop(prompts: Iterator[Prompt], loop: ClosedLoop, limits: Limits, sender: Sender, tally: Tally) -> None:
    """Returns when the last answer has ended."""
    began_s = trio.current_time()
    numbered = enumerate(prompts)

    async def be_a_client() -> None:
        # The clients share one iterator: each prompt is asked once, by whoever is free first.
        for index, prompt in numbered:
            now_s = trio.current_time()
            if _is_past(limits, index, now_s - began_s):
                return
            await _send(PlannedRequest(index=index, due_s=now_s, prompt=prompt), sender, tally)

    async with trio.open_nursery() as nursery:
        for _client in range(loop.clients):
            nursery.start_soon(be_a_client)


async def run_open_loop(
    prompts: Iterator[Prompt], arrivals_s: Iterator[float], limits: Limits, sender: Sender, tally: Tally
) -> None:
    """Sends one prompt at each arrival; returns when the last answer has ended."""
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for index, (prompt, arrival_s) in enumerate(zip(prompts, arrivals_s, strict=False)):
            if _is_past(limits, index, arrival_s):
                return
            await trio.sleep_until(began_s + arrival_s)
            request = PlannedRequest(index=index, due_s=began_s + arrival_s, prompt=prompt)
            nursery.start_soon(_send, request, sender, tally)


async def _send(request: PlannedRequest, sender: Sender, tally: Tally) -> None:
    tally.opened()
    tally.ended(await sender.send(request, tally))


def _is_past(limits: Limits, index: int, elapsed_s: float) -> bool:
    if limits.requests is not None and index >= limits.requests:
        return True
    return limits.duration_s is not None and elapsed_s >= limits.duration_s
