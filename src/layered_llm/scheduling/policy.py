"""What the operator decides about scheduling.

Must not know: where the values come from, what the runtime can hold.
"""

import enum
from typing import Final

import attrs

MAX_STEPS_IN_FLIGHT: Final = 2
"""With two the device never waits for the scheduler; a third would only delay new requests and aborts."""


@enum.unique
class AdmissionOrder(enum.Enum):
    """Which of a tenant's waiting choices starts next. Tenants themselves take turns in every order; see `open_requests`."""

    FIRST_COME = enum.auto()
    PRIORITY = enum.auto()
    """Lowest `Placement.priority` first, first come, first served among equal ones."""
    LONGEST_PREFIX = enum.auto()
    """Whoever finds most of its prompt in the cache first, so that a prefix is used before it is evicted."""


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
    prefix_cache: bool = True
    """Whether computed pages are kept for other requests with the same beginning."""
    shares_prefixes: bool = False
    """Whether tenants find each other's computed pages; else what one asked does not show in the cached tokens of another."""
    admission_order: AdmissionOrder = AdmissionOrder.FIRST_COME
    max_overtakes: int = 16
    """How often, one after another, the choice that came first may be passed over by later ones; 0 makes every order
    first come, first served."""
    max_streams_per_tenant: int | None = None
    """Open requests of one tenant; the next one is refused. Requests that name no tenant are one tenant's."""
    max_streams: int | None = None
    """Open requests of all tenants together; the next one is refused."""
    max_queue_us: int | None = None
    """How long a request may wait for its first choice to start; then it is ended. None for no bound."""
    max_token_gap_us: int | None = None
    """Time that a step with decode rows is to take at most, by the prefill that it has (`budget`). None for no such bound."""

    def __attrs_post_init__(self) -> None:
        bounds = {
            "max_step_tokens": self.max_step_tokens,
            "max_running_choices": self.max_running_choices,
            "max_queued_requests": self.max_queued_requests,
            "max_unacknowledged_steps": self.max_unacknowledged_steps,
            "max_steps_in_flight": self.max_steps_in_flight,
            "max_queue_us": 1 if self.max_queue_us is None else self.max_queue_us,
            "max_token_gap_us": 1 if self.max_token_gap_us is None else self.max_token_gap_us,
            "max_streams": 1 if self.max_streams is None else self.max_streams,
            "max_streams_per_tenant": 1 if self.max_streams_per_tenant is None else self.max_streams_per_tenant,
        }
        if self.max_overtakes < 0:
            raise ValueError(f"max_overtakes must be at least 0, got {self.max_overtakes}")
        for name, value in bounds.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.max_steps_in_flight > MAX_STEPS_IN_FLIGHT:
            raise ValueError(f"max_steps_in_flight must be at most {MAX_STEPS_IN_FLIGHT}, got {self.max_steps_in_flight}")
