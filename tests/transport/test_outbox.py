from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from layered_llm.domain.errors import InvariantViolated
from layered_llm.transport.outbox import Outbox


@attrs.define
class Sink:
    """A link whose peer takes a message whenever the gate is open."""

    taken: list[str] = attrs.field(factory=list)
    gate: trio.Event = attrs.field(factory=trio.Event)

    async def send(self, message: str) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        await self.gate.wait()
        self.taken.append(message)


def open_sink() -> Sink:
    sink = Sink()
    sink.gate.set()
    return sink


def test_reserving_stops_at_the_capacity() -> None:
    outbox: Outbox[str] = Outbox(3)

    assert outbox.reserve(2)
    assert not outbox.reserve(2)
    assert outbox.reserve(1)
    assert 3 == outbox.reserved


async def test_reserved_emit_succeeds_in_an_outbox_that_is_full_for_others() -> None:
    outbox: Outbox[str] = Outbox(2)
    outbox.reserve(2)
    outbox.emit("submit")
    assert not outbox.reserve()

    outbox.emit("abort")

    assert (2, 0) == (outbox.pending, outbox.reserved)


async def test_emit_beyond_the_reservations_is_our_own_fault() -> None:
    outbox: Outbox[str] = Outbox(10)
    outbox.reserve()
    outbox.emit("a")

    with pytest.raises(InvariantViolated, match="only 0 are reserved"):
        outbox.emit("b")


async def test_emit_into_a_full_outbox_without_reservations_is_our_own_fault() -> None:
    outbox: Outbox[str] = Outbox(1)
    outbox.emit("a")

    with pytest.raises(InvariantViolated, match="full outbox of 1"):
        outbox.emit("b")


def test_releasing_more_than_reserved_is_our_own_fault() -> None:
    outbox: Outbox[str] = Outbox(2)
    outbox.reserve()

    with pytest.raises(InvariantViolated, match="2 outbox slots given back"):
        outbox.release(2)


def test_released_slot_is_free_again() -> None:
    outbox: Outbox[str] = Outbox(1)
    outbox.reserve()
    outbox.release()

    assert outbox.reserve()


async def test_run_sends_in_order_what_comes_before_and_after_its_start() -> None:
    outbox: Outbox[str] = Outbox(10)
    sink = open_sink()
    outbox.emit("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run, sink)
        await trio.testing.wait_all_tasks_blocked()
        outbox.emit("b")
        outbox.emit("c")
        await outbox.flushed()
        nursery.cancel_scope.cancel()

    assert ["a", "b", "c"] == sink.taken
    assert 0 == outbox.pending


async def test_message_holds_its_slot_until_the_link_took_it() -> None:
    outbox: Outbox[str] = Outbox(1)
    sink = Sink()
    outbox.reserve()
    outbox.emit("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run, sink)
        await trio.testing.wait_all_tasks_blocked()
        assert not outbox.reserve()

        sink.gate.set()
        await outbox.flushed()

        assert outbox.reserve()
        nursery.cancel_scope.cancel()


async def test_last_words_are_drained_after_run_was_cancelled() -> None:
    outbox: Outbox[str] = Outbox(10)
    sink = Sink()
    outbox.emit("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run, sink)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    outbox.emit("abort")
    sink.gate.set()
    await outbox.drain(sink)

    assert ["a", "abort"] == sink.taken


async def test_drain_that_runs_out_of_time_keeps_what_it_did_not_send(autojump_clock: trio.testing.MockClock) -> None:
    outbox: Outbox[str] = Outbox(10)
    outbox.emit("a")
    with trio.move_on_after(1, shield=True) as scope:
        await outbox.drain(Sink())

    assert scope.cancelled_caught
    assert 1 == outbox.pending


async def test_error_of_the_link_passes_through_and_keeps_the_message() -> None:
    class Broken:
        async def send(self, message: str) -> None:
            raise trio.ClosedResourceError

    outbox: Outbox[str] = Outbox(10)
    outbox.emit("a")
    with pytest.raises(trio.ClosedResourceError):
        await outbox.run(Broken())

    assert 1 == outbox.pending


class ReservationMachine(RuleBasedStateMachine):
    """Any sequence of reservations, releases, emits and sends keeps within the capacity, and a reserved emit never fails."""

    CAPACITY = 5

    def __init__(self) -> None:
        super().__init__()
        self.outbox: Outbox[str] = Outbox(self.CAPACITY)
        self.reserved = 0
        self.pending = 0

    @rule(slots=st.integers(1, 3))
    def reserve(self, slots: int) -> None:
        fits = self.reserved + self.pending + slots <= self.CAPACITY
        assert fits == self.outbox.reserve(slots)
        self.reserved += slots if fits else 0

    @precondition(lambda self: self.reserved)
    @rule()
    def release(self) -> None:
        self.outbox.release()
        self.reserved -= 1

    @precondition(lambda self: self.reserved)
    @rule()
    def emit(self) -> None:
        trio.run(self._in_trio, self.outbox.emit, "a")
        self.reserved -= 1
        self.pending += 1

    @rule()
    def drain(self) -> None:
        trio.run(self.outbox.drain, open_sink())
        self.pending = 0

    @invariant()
    def counts_agree(self) -> None:
        assert (self.pending, self.reserved) == (self.outbox.pending, self.outbox.reserved)

    async def _in_trio(self, function: Any, *args: Any) -> None:
        function(*args)


TestReservations = ReservationMachine.TestCase
TestReservations.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
