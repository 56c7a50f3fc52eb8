"""The policies that a simulation compares: one line of the table each.

Must not know: the traffic, the device.
"""

import argparse
import itertools
from collections.abc import Iterator
from typing import Final

import attrs

from layered_llm.scheduling.policy import AdmissionOrder, SchedulingPolicy

ORDERS: Final = {
    "fcfs": AdmissionOrder.FIRST_COME,
    "lpm": AdmissionOrder.LONGEST_PREFIX,
    "priority": AdmissionOrder.PRIORITY,
}


@attrs.frozen(kw_only=True)
class Policy:
    """One line of the table."""

    prefix_cache: str
    in_flight: int
    order: str
    chunk: int
    max_token_gap_ms: float

    def scheduling(self, running: int) -> SchedulingPolicy:
        return SchedulingPolicy(
            max_step_tokens=self.chunk,
            max_running_choices=running,
            max_queued_requests=1_000_000,
            max_unacknowledged_steps=64,
            max_steps_in_flight=self.in_flight,
            prefix_cache=self.prefix_cache == "on",
            admission_order=ORDERS[self.order],
            max_token_gap_us=round(1_000 * self.max_token_gap_ms) or None,
        )


def add_policies(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--prefix-cache", nargs="+", choices=("on", "off"), default=["on", "off"], help="default: on off")
    add("--in-flight", nargs="+", type=int, choices=(1, 2), default=[2, 1], help="steps in flight (default: 2 1)")
    add("--order", nargs="+", choices=ORDERS, default=list(ORDERS), help="who starts next (default: fcfs lpm priority)")
    add(
        "--chunk", nargs="+", type=count, default=[512, 128, 2048], metavar="N", help="tokens of a step (default: 512 128 2048)"
    )
    add("--max-token-gap-ms", nargs="+", type=float, default=[0, 20], metavar="X", help="0 for none (default: 0 20)")
    add("--cross", action="store_true", help="every combination, and not one change at a time")


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def policies_of(arguments: argparse.Namespace) -> Iterator[tuple[str, Policy]]:
    """Names tell the difference from the first one."""
    fields = [field.name for field in attrs.fields(Policy)]
    values = [getattr(arguments, name) for name in fields]
    base = Policy(**{name: several[0] for name, several in zip(fields, values, strict=True)})
    if arguments.cross:
        for one in itertools.product(*values):
            policy = Policy(**dict(zip(fields, one, strict=True)))
            yield difference(base, policy), policy
        return
    yield difference(base, base), base
    for name, several in zip(fields, values, strict=True):
        for value in several[1:]:
            policy = attrs.evolve(base, **{name: value})
            yield difference(base, policy), policy


def difference(base: Policy, policy: Policy) -> str:
    words = (
        f"{field.name.replace('_', '-')} {getattr(policy, field.name):{'g' if field.type is float else ''}}"
        for field in attrs.fields(Policy)
        if policy == base or getattr(policy, field.name) != getattr(base, field.name)
    )
    return ", ".join(words)
