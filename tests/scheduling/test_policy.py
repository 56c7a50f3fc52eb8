from typing import Any

import attrs
import pytest

from support.scheduling_rig import policy

BOUNDS = (
    "max_step_tokens",
    "max_running_choices",
    "max_queued_requests",
    "max_unacknowledged_steps",
    "max_steps_in_flight",
    "max_streams_per_tenant",
    "max_token_gap_us",
)


@pytest.mark.parametrize("field", BOUNDS)
def test_a_bound_that_lets_nothing_run_is_refused(field: str) -> None:
    value: dict[str, Any] = {field: 0}

    with pytest.raises(ValueError, match=field):
        attrs.evolve(policy(), **value)


def test_a_negative_number_of_overtakes_is_refused() -> None:
    with pytest.raises(ValueError, match="max_overtakes"):
        policy(overtakes=-1)


def test_a_third_step_in_flight_is_refused() -> None:
    with pytest.raises(ValueError, match="max_steps_in_flight"):
        policy(in_flight=3)
