"""What whoever watches a server's terminal is told: where it listens, where its engine stands, that it stops.

Must not know: what the phases mean.
"""

from collections.abc import Sequence

from layered_llm.domain.messages.supervision import EnginePhase, EngineStatus
from layered_llm.service.engine_client.engine_client import EngineClient
from layered_llm.service.settings.cli_parser import say
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.hypercorn_server.listening import Listening


def farewell(open_responses: int, drain_timeout_s: float) -> str:
    """What to say at the beginning of a drain."""
    match open_responses:
        case 0:
            return "stopping"
        case 1:
            return f"stopping; one open response has {drain_timeout_s:g} s to end by itself"
        case _:
            return f"stopping; {open_responses} open responses have {drain_timeout_s:g} s to end by themselves"


def phase_line(status: EngineStatus, urls: Sequence[str], worker: int) -> str:
    """What a server's worker, counted from 1, says of the engine; empty for what the first says for all of them."""
    if worker > 1:
        return f"worker {worker} is ready" if status.phase is EnginePhase.READY else ""
    if status.stalled:
        return f"stalled: {status.trouble}"
    if status.phase is not EnginePhase.READY:
        return f"{status.phase}: {status.detail}"
    places = ", ".join(url if url.startswith("unix:") else f"{url}/v1" for url in urls)
    return f"ready on {places}" if places else "ready"


def trial_line(urls: Sequence[str], *, needs_key: bool) -> str:
    """What whoever reads that the server is ready may try next; empty where it is reached by no URL."""
    url = next((url for url in urls if not url.startswith("unix:")), None)
    if url is None:
        return ""
    body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    return f"try: curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"


async def tell_phases(client: EngineClient, drain: Drain, listening: Listening, worker: int, *, needs_key: bool) -> None:
    """One line for each change of the engine's status, until the server drains; what to try once, when it is first ready."""
    told, has_said_trial = "", False
    while not drain.is_active:
        line = phase_line(client.status(), listening.urls, worker)
        if line and line != told:
            say(line)
        told = line
        if worker == 1 and not has_said_trial and client.status().phase is EnginePhase.READY:
            has_said_trial = True
            trial = trial_line(listening.urls, needs_key=needs_key)
            if trial:
                say(trial)
        await client.status_change()
