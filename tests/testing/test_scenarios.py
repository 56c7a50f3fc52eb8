import pytest

from layered_llm.testing.cancel_everywhere import Points, cancel_everywhere
from layered_llm.testing.playing import Target
from layered_llm.testing.scenarios import all_scenarios

TARGETS = all_scenarios()
SOME = Points(every=4, engine_every=32)
"""A few percent of the points that `python -m layered_llm.testing cancel-everywhere` covers with one seed."""


@pytest.mark.parametrize(("seed", "target"), list(enumerate(TARGETS)), ids=[target.name for target in TARGETS])
def test_a_fault_leaves_nothing_behind(seed: int, target: Target) -> None:
    coverage = cancel_everywhere(target, seeds=[seed], points=SOME)

    assert [] == [str(failure) for failure in coverage.failures]
    assert coverage.points > 0


def test_scenarios_have_names_of_their_own() -> None:
    names = [target.name for target in TARGETS]

    assert sorted(set(names)) == sorted(names)
