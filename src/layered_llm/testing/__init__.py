"""Fault injection for everything that embeds the engine: run a scenario, cancelled at each of its steps in turn.

A scenario is an async function that works with an engine. Its first run counts its steps (what a task does between two waits);
then it is run again once for each step and fault, with a cancellation, a passed deadline or an error exactly there. After each
run the whole contract is checked: one end for each request, one abort for each that was left, before its scope is closed; every
table empty, every page back; the next request answered as ever. All of it happens in one thread and in virtual time.

    import contextlib
    import trio
    from layered_llm.testing import Engine, Prompt, Rejected, RequestEnded, SamplingParams, Target, cancel_everywhere

    async def ask(engine: Engine, disconnect: trio.Event) -> None:
        with contextlib.ExitStack() as owner:
            stream = engine.open(owner, Prompt.of_text("Hello"), SamplingParams(max_tokens=3))
            if isinstance(stream, Rejected) or isinstance(await stream.verdict(), Rejected):
                return
            while not isinstance((await stream.receive())[-1], RequestEnded):
                pass

    coverage = cancel_everywhere(Target(name="ask", run=ask), seeds=range(2))
    assert not coverage.failures, "\\n".join(map(str, coverage.failures))

In pytest, with `pytest_plugins = ["layered_llm.testing.pytest_plugin"]` in the conftest.py:

    def test_asking_leaves_nothing_behind(cancel_everywhere) -> None:
        cancel_everywhere(Target(name="ask", run=ask))

`Points` chooses where faults are injected: also between the steps of the engine's own tasks, while the target only waits.
`Target.options` say what the engine is like, `Target.beside` what runs at the same time and must not notice. `http_exchange`
makes a target of an HTTP request. `python -m layered_llm.testing cancel-everywhere` runs the project's own scenarios.
"""

from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.ports.engine import Engine, EngineLost, EngineStream
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import RequestEnded
from layered_llm.testing.asgi_target import http_exchange
from layered_llm.testing.byte_text import byte_text_files
from layered_llm.testing.cancel_everywhere import CLIENT_FAULTS, LIBRARY_FAULTS, Coverage, Failure, Points, cancel_everywhere
from layered_llm.testing.deterministic import run_deterministic
from layered_llm.testing.injection import Fault, Injected
from layered_llm.testing.inline_engine import InlineEngine, InlineEngineOptions, hash_script, open_inline_engine
from layered_llm.testing.memory_links import MemoryLinks
from layered_llm.testing.playing import PromiseBroken, Target

__all__ = [
    "CLIENT_FAULTS", "LIBRARY_FAULTS", "Coverage", "Engine", "EngineLost", "EngineStream", "Failure", "Fault", "Injected",
    "InlineEngine", "InlineEngineOptions", "MemoryLinks", "Points", "PromiseBroken", "Prompt", "Rejected", "RequestEnded",
    "SamplingParams", "Target", "byte_text_files", "cancel_everywhere", "hash_script", "http_exchange",
    "open_inline_engine", "run_deterministic",
]  # fmt: skip
