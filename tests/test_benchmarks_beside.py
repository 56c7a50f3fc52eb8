"""What `--beside` makes of its measurements."""

import pytest
from benchmarks.beside import Pair, Ratio, Samples, measure_round, table


def pair(this: float = 1.0, other: float = 1.0, *, more_is_better: bool = True) -> Pair:
    return Pair(name="thing", unit="tokens/s", more_is_better=more_is_better, this=lambda: this, other=lambda: other)


@pytest.mark.parametrize(("more_is_better", "ratio"), [(True, 2.0), (False, 0.5)])
def test_a_ratio_above_1_is_a_faster_tree(more_is_better: bool, ratio: float) -> None:
    samples = Samples(pair=pair(more_is_better=more_is_better), this=[4.0], other=[2.0])
    assert [ratio] == samples.ratios


def test_rounds_that_agree_have_no_spread() -> None:
    assert Ratio(median=0.98, spread=0.0) == Ratio.of([0.98] * 7)


def test_the_spread_of_a_median_shrinks_with_the_root_of_the_rounds() -> None:
    few, many = Ratio.of([0.9, 1.0, 1.1] * 3), Ratio.of([0.9, 1.0, 1.1] * 12)
    assert few.spread == pytest.approx(2 * many.spread)


@pytest.mark.parametrize(("spread", "holds"), [(0.0, True), (0.01, True), (0.011, False)])
def test_a_bound_holds_if_the_ratio_less_its_spread_meets_it(spread: float, holds: bool) -> None:
    assert holds == Ratio(median=0.5, spread=spread).holds(0.49)


@pytest.mark.parametrize(("this_first", "order"), [(True, ["this", "other"]), (False, ["other", "this"])])
def test_either_side_is_measured_first(this_first: bool, order: list[str]) -> None:
    calls: list[str] = []

    def measure(side: str) -> float:
        calls.append(side)
        return 1.0

    both = Pair(name="", unit="", more_is_better=True, this=lambda: measure("this"), other=lambda: measure("other"))
    measure_round(Samples(pair=both), this_first=this_first, done=lambda: None)
    assert order == calls


def test_the_table_says_which_pair_falls_short() -> None:
    samples = Samples(pair=pair(), this=[9.0] * 7, other=[10.0] * 7)
    assert table([samples], 0.98).splitlines()[1].split() == ["thing,", "tokens/s", "9", "10", "0.900", "±", "0.000", "NO"]
