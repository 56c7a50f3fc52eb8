"""That scenarios get where their names say, without any fault: else faults would be injected at nothing."""

import pytest
import trio

from layered_llm.domain.messages.supervision import EngineState
from layered_llm.testing import open_inline_engine, run_deterministic
from layered_llm.testing.playing import Target
from layered_llm.testing.scenarios import all_scenarios
from layered_llm.testing.wire_audit import WireAudit
from support.metrics import samples_by_name

REACHED = {
    "preempted": "preemptions_total",
    "preempts-another": "preemptions_total",
    "preempted-choice": "preemptions_total",
    "stop-string": "stop_strings_matched_total",
    "questions": "questions_answered_total",
    "questions-aside": "questions_answered_total",
    "http-tokenize": "questions_answered_total",
    "shared-prompt": "prefix_cache_hit_tokens_total",
    "queue-full": 'requests_refused_total{reason="queue_full"}',
    "queue-timeout": "queue_timeouts_total",
    "http-queue-timeout-stream": "queue_timeouts_total",
    "http-first-token-timeout": 'aborts_emitted_total{reason="timeout"}',
    "http-idle-timeout-stream": 'aborts_emitted_total{reason="timeout"}',
    "http-shutting-down": 'aborts_emitted_total{reason="shutdown"}',
    "ended-by-name": 'aborts_emitted_total{reason="administrative"}',
    "ended-by-another-process": 'aborts_emitted_total{reason="administrative"}',
    "http-ended-by-id": 'aborts_emitted_total{reason="administrative"}',
    "row-fails": 'choices_finished_total{reason="error"}',
    "choices-fail": 'choices_finished_total{reason="error"}',
    "http-row-fails": "requests_failed_total",
    "http-row-fails-stream": "requests_failed_total",
    "stop-by-reader": 'aborts_emitted_total{reason="client_gone"}',
}
TARGETS = {target.name: target for target in all_scenarios()}


def played(target: Target) -> EngineState:
    """The state of an engine behind one run of a scenario."""

    async def main() -> EngineState:
        async with open_inline_engine(target.options, WireAudit(trio.current_time)) as engine, engine.api_process() as process:
            client = process.client if target.in_own_process else engine.client
            async with trio.open_nursery() as nursery:
                for scenario in target.beside:
                    nursery.start_soon(scenario, engine.client)
                nursery.start_soon(target.run, client, trio.Event())
            return await engine.client.state()

    return run_deterministic(main, seed=0)


@pytest.mark.parametrize("name", REACHED)
def test_a_scenario_gets_where_its_name_says(name: str) -> None:
    state = played(TARGETS[name])

    figures = [samples_by_name(report.metrics).get(f"layered_llm_{REACHED[name]}", 0.0) for report in state.reports]
    assert 0 < sum(figures)


def test_two_steps_are_in_flight_unless_a_scenario_says_one() -> None:
    assert {1, 2} == {target.options.steps_in_flight for target in TARGETS.values()}
