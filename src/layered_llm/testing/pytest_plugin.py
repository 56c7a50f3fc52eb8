"""A pytest fixture for scenarios of one's own. Not loaded by itself: `pytest_plugins = ["layered_llm.testing.pytest_plugin"]`.

Must not know: which scenarios are tested.
"""

from collections.abc import Callable, Iterable

import pytest

from layered_llm.testing.cancel_everywhere import EVERYWHERE, Coverage, Points, cancel_everywhere
from layered_llm.testing.injection import Fault
from layered_llm.testing.playing import Target

CancelEverywhere = Callable[..., Coverage]


def check(
    target: Target, *, seeds: Iterable[int] = (0, 1), faults: Iterable[Fault] | None = None, points: Points = EVERYWHERE
) -> Coverage:
    """Runs `cancel_everywhere` and fails the test with what was broken, one line for each run."""
    coverage = cancel_everywhere(target, seeds=seeds, faults=faults, points=points)
    if coverage.failures:
        pytest.fail("\n".join(map(str, coverage.failures)), pytrace=False)
    if not coverage.points:
        pytest.fail(f"{target.name}: no step of the target got a fault", pytrace=False)
    return coverage


@pytest.fixture(name="cancel_everywhere")
def cancel_everywhere_fixture() -> CancelEverywhere:
    """`cancel_everywhere(target, seeds=…, faults=…, points=…)`: fails the test where a run breaks the contract."""
    return check
