import attrs
import pytest

from support.scheduling_rig import policy


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(type(policy()))])
def test_a_bound_that_lets_nothing_run_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        attrs.evolve(policy(), **{field: 0})


def test_a_third_step_in_flight_is_refused() -> None:
    with pytest.raises(ValueError, match="max_steps_in_flight"):
        policy(in_flight=3)
