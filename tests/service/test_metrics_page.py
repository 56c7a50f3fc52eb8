"""The whole page of a real engine's /metrics: its names, labels and help texts are what users' dashboards are made of."""

from pathlib import Path

import attrs
import trio

from layered_llm.domain.messages.supervision import EngineState, Role
from layered_llm.domain.metrics import metrics_of
from layered_llm.testing import open_inline_engine, run_deterministic
from layered_llm.testing.scenarios import all_scenarios
from layered_llm.transport.http.exchange.refusals import Refusals
from layered_llm.transport.http.operations.metrics import render

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"
SETTINGS = {"page_size": 16, "kv_dtype": "float32", "prefix_caching": True, "memory_ratio": 0.5}


def played() -> EngineState:
    """After requests that ended, and one that the scheduler refused."""
    (target,) = (target for target in all_scenarios() if target.name == "queue-full")

    async def main() -> EngineState:
        async with open_inline_engine(target.options) as engine:
            async with trio.open_nursery() as nursery:
                for scenario in target.beside:
                    nursery.start_soon(scenario, engine.client)
                nursery.start_soon(target.run, engine.client, trio.Event())
            return await engine.client.state()

    return run_deterministic(main, seed=0)


def with_refusals(state: EngineState) -> EngineState:
    """A server's API process counts these beside its engine's client."""
    refused = metrics_of(Refusals())
    reports = [
        attrs.evolve(report, metrics=(*report.metrics, *refused)) if report.role is Role.API else report
        for report in state.reports
    ]
    return attrs.evolve(state, reports=tuple(reports))


def without_values(page: str) -> list[str]:
    return [line if line.startswith("#") else line.rpartition(" ")[0] for line in page.splitlines()]


def test_the_page_has_the_names_labels_and_help_texts_that_it_always_had() -> None:
    page = render(with_refusals(played()), is_ready=True, vllm_model_name="m", settings=SETTINGS)

    assert GOLDEN.read_text().splitlines() == without_values(page)
