"""What the package documents for scenarios of one's own, run as documented."""

import contextlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import trio

import layered_llm.testing
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.sampling import SamplingParams
from layered_llm.testing import Coverage, Engine, PromiseBroken, Target
from layered_llm.testing.scenario_parts import library

CancelEverywhere = Callable[..., Coverage]

pytest_plugins = ["layered_llm.testing.pytest_plugin"]


def documented_example() -> str:
    lines = (inspect.getdoc(layered_llm.testing) or "").splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("    import"))
    behind = next(place for place, line in enumerate(lines) if line.startswith("In pytest"))
    return textwrap.dedent("\n".join(lines[first:behind]))


def test_the_documented_example_runs() -> None:
    names: dict[str, Any] = {}

    exec(compile(documented_example(), "example", "exec"), names)

    assert names["coverage"].points > 20


def test_the_fixture_runs_a_target(cancel_everywhere: CancelEverywhere) -> None:
    coverage = cancel_everywhere(Target(name="ask", run=library(max_tokens=2)), seeds=[3])

    assert coverage.points > 10


def test_the_fixture_fails_a_test_with_the_run_that_broke(cancel_everywhere: CancelEverywhere) -> None:
    async def leak(engine: Engine, _disconnect: trio.Event) -> None:
        engine.open(contextlib.ExitStack(), Prompt.of_text("leaked"), SamplingParams())

    with pytest.raises(pytest.fail.Exception, match=r"leak, seed 0, no fault: C2: requests .* are open"):
        cancel_everywhere(Target(name="leak", run=leak))


def test_a_scenario_may_check_for_itself(cancel_everywhere: CancelEverywhere) -> None:
    async def complain(_engine: Engine, _disconnect: trio.Event) -> None:
        raise PromiseBroken("the answer is wrong")

    with pytest.raises(pytest.fail.Exception, match="PromiseBroken: the answer is wrong"):
        cancel_everywhere(Target(name="complain", run=complain))


def test_a_target_without_steps_proves_nothing(cancel_everywhere: CancelEverywhere) -> None:
    with pytest.raises(pytest.fail.Exception, match="no step of the target got a fault"):
        cancel_everywhere(Target(name="idle", run=library(), faults=()))
