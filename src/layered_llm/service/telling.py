"""What whoever watches a server's terminal is told: where it listens, where its engine stands, that it stops.

Must not know: what the phases mean.
"""

import contextlib
import sys

from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.service.engine_client import EngineClient
from layered_llm.transport.http.drain import Drain


def say(line: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(OSError):  # a full disk or a terminal that is gone is no reason to end the server
        sys.stderr.write(f"layered_llm: {line}\n")
        sys.stderr.flush()


def farewell(open_responses: int, drain_timeout_s: float) -> str:
    """What to say at the beginning of a drain."""
    match open_responses:
        case 0:
            return "stopping"
        case 1:
            return f"stopping; one open response has {drain_timeout_s:g} s to end by itself"
        case _:
            return f"stopping; {open_responses} open responses have {drain_timeout_s:g} s to end by themselves"


async def tell_phases(client: EngineClient, drain: Drain) -> None:
    """One line for each change of the engine's status, until the server drains."""
    told = ""
    while not drain.is_active:
        status = client.status()
        line = "ready" if status.phase is EnginePhase.READY else f"{status.phase}: {status.detail}"
        line = f"stalled: {status.trouble}" if status.stalled else line
        if line != told:
            say(line)
            told = line
        await client.status_change()
