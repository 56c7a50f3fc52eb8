"""Turns between tenants: whoever was given least comes next."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from layered_llm.domain.turns import Turns


def served_in_order(turns: Turns[str]) -> list[str]:
    served = []
    while (turn := turns.next()) is not None:
        served.append(turn.item)
        turns.leave(turn)
    return served


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    turns = Turns[str]()
    for item in ("first", "second", "third"):
        turns.enter("alice", 1, item)
    assert served_in_order(turns) == ["first", "second", "third"]


def test_another_tenants_small_work_waits_for_one_turn_of_a_flood() -> None:
    turns = Turns[str]()
    for number in range(100):
        turns.enter("flooder", 300_000, f"flood {number}")
    under_way = turns.next()
    turns.enter("other", 5_700, "small")
    assert under_way is not None
    turns.leave(under_way)
    following = turns.next()
    assert following is not None
    assert following.item == "small"


def test_turns_are_by_cost_and_not_by_number() -> None:
    turns = Turns[str]()
    for _ in range(10):
        turns.enter("large", 100, "large")
        for _ in range(10):
            turns.enter("small", 10, "small")
    assert Counter(served_in_order(turns)[:55]) == {"small": 50, "large": 5}


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    turns = Turns[str]()
    turns.enter("busy", 1, "busy")
    turns.enter("idle", 1, "idle")
    for _ in range(1000):
        turn = turns.next()
        assert turn is not None
        turns.enter("busy", 1, "busy")
        turns.leave(turn)
    for _ in range(10):
        turns.enter("idle", 1, "idle")
    assert Counter(served_in_order(turns)[:2]) == {"busy": 1, "idle": 1}


def test_who_leaves_and_comes_back_while_others_wait_keeps_what_it_was_given() -> None:
    turns = Turns[str]()
    first = turns.enter("greedy", 1000, "greedy")
    turns.enter("other", 1, "other")
    assert turns.next() is first
    turns.leave(first)
    turns.enter("greedy", 1000, "greedy")
    turns.enter("other", 1, "other")
    assert served_in_order(turns) == ["other", "other", "greedy"]


def test_what_left_before_its_turn_is_neither_served_nor_charged() -> None:
    turns = Turns[str]()
    gone = turns.enter("alice", 1_000_000, "gone")
    turns.enter("alice", 1, "alice")
    turns.enter("bob", 1, "bob")
    turns.leave(gone)
    assert served_in_order(turns) == ["alice", "bob"]


def test_an_idle_tenant_is_forgotten_once_others_were_given_as_much() -> None:
    turns = Turns[str]()
    turns.enter("busy", 1, "busy")
    for number in range(1000):
        turns.enter(f"visitor {number}", 1, "visitor")
        for _ in range(2):
            turn = turns.next()
            assert turn is not None
            if turn.tenant == "busy":
                turns.enter("busy", 1, "busy")
            turns.leave(turn)
    assert turns.tenant_count <= 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=60))
def test_nothing_is_lost_or_kept_whatever_the_order_of_arrivals_and_departures(arrivals: list[tuple[str, int, bool]]) -> None:
    turns = Turns[int]()
    expected, served = set(), []
    for number, (tenant, cost, leaves) in enumerate(arrivals):
        turn = turns.enter(tenant, cost, number)
        if leaves:
            turns.leave(turn)
        else:
            expected.add(number)
    while (next_turn := turns.next()) is not None:
        served.append(next_turn.item)
        turns.leave(next_turn)
    assert (sorted(served), turns.tenant_count, turns.waiting_count) == (sorted(expected), 0, 0)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=60))
def test_tenants_that_always_wait_are_no_further_apart_than_one_turn(costs: list[tuple[int, int]]) -> None:
    turns = Turns[int]()
    for alice, bob in costs:
        turns.enter("alice", alice, alice)
        turns.enter("bob", bob, bob)
    given_to = Counter({"alice": 0, "bob": 0})
    largest = max(itertools.chain(*costs))
    waiting = Counter({"alice": len(costs), "bob": len(costs)})
    while min(waiting.values()) and (turn := turns.next()) is not None:
        given_to[turn.tenant] += turn.item
        waiting[turn.tenant] -= 1
        turns.leave(turn)
        assert abs(given_to["alice"] - given_to["bob"]) <= largest
