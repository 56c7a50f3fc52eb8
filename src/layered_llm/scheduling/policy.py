"""What the operator decides about scheduling.

Must not know: where the values come from, what the runtime can hold.
"""

from typing import Final

import attrs

MAX_STEPS_IN_FLIGHT: Final = 2
"""With two the device never waits for the scheduler; a third would only delay new requests and aborts."""


@attrs.frozen(kw_only=True)
class SchedulingPolicy:
    """Bounds of the scheduler. Raises ValueError for a bound that would let nothing run."""

    max_step_tokens: int
    """Budget of one step: decode rows and prefill chunks together."""
    max_running_choices: int
    """Choices that hold pages and a slot at once; the runtime's slots bound them too."""
    max_queued_requests: int
    """Requests of which a choice waits; the next one is refused."""
    max_unacknowledged_steps: int
    """TokensEmitted that a text worker may leave unacknowledged before its choices are no longer planned.

    Steps in flight by then add theirs, so a worker is owed at most `max_steps_in_flight - 1` more.
    """
    max_steps_in_flight: int
    """Steps sent to the runtime and not yet answered, 1 or 2."""

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.max_steps_in_flight > MAX_STEPS_IN_FLIGHT:
            raise ValueError(f"max_steps_in_flight must be at most {MAX_STEPS_IN_FLIGHT}, got {self.max_steps_in_flight}")
