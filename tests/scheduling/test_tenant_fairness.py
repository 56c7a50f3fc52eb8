"""Tenants get equal shares of what is computed, whatever they ask for and however often they come."""

from collections import Counter
from collections.abc import Iterator
from random import Random

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.scheduling.open_requests import Tenants
from layered_llm.scheduling.sequences import OUTPUT_TOKEN_COST, PROMPT_TOKEN_COST
from support.scheduling_rig import Rig, admit, limits, policy


@attrs.frozen
class Habit:
    """What one tenant asks for, again and again."""

    prompt: int
    tokens: int
    waiting: int = 10
    """Requests that it has in the queue at any time."""

    @property
    def cost(self) -> int:
        return PROMPT_TOKEN_COST * self.prompt + OUTPUT_TOKEN_COST * self.tokens


@attrs.define
class Crowd:
    """Tenants that ask for more whenever less of them waits, and what each was given so far."""

    rig: Rig
    habits: dict[str, Habit]
    tenants: dict[int, str] = attrs.field(init=False, factory=dict)
    starts: list[str] = attrs.field(init=False, factory=list)

    def ask(self, tenant: str) -> None:
        habit, request = self.habits[tenant], len(self.tenants)
        self.tenants[request] = tenant
        self.rig.admit(admit(request, prompt=habit.prompt, tokens=habit.tokens, tenant=tenant))

    def steps(self, count: int) -> None:
        for _ in range(count):
            waiting = Counter(one.admit.placement.tenant for one in self.rig.scheduler._waiting.sequences())
            for tenant, habit in self.habits.items():
                for _ in range(habit.waiting - waiting[tenant]):
                    self.ask(tenant)
            known = len(self.rig.device.steps)
            self.rig.step()
            for step in self.rig.device.steps[known:]:
                self.starts += [self.tenants[opened.sampling.seed] for opened in step.opened]

    def served(self) -> Counter[str]:
        """Cost of the prompts that were started and of the tokens that came back."""
        served = Counter(
            {tenant: PROMPT_TOKEN_COST * habit.prompt * self.starts.count(tenant) for tenant, habit in self.habits.items()}
        )
        for (request, _), tokens in self.rig.outputs.items():
            served[self.tenants[request]] += OUTPUT_TOKEN_COST * len(tokens)
        return served


def crowd(habits: dict[str, Habit], *, running: int = 1, in_flight: int = 1) -> Crowd:
    rig = Rig(limits=limits(pages=256), policy=policy(running=running, in_flight=in_flight, budget=64, cache=False))
    return Crowd(rig, habits)


habits = st.builds(Habit, st.integers(1, 60), st.integers(1, 20))


@settings(max_examples=10, deadline=None, derandomize=True)
@given(asked=st.lists(habits, min_size=2, max_size=4), running=st.integers(1, 4), in_flight=st.integers(1, 2))
def test_those_who_always_wait_are_never_far_apart(asked: list[Habit], running: int, in_flight: int) -> None:
    """Twice the most that the choices that run can be given: the paper's bound, with a pool of `running` choices."""
    names = [chr(ord("a") + index) for index in range(len(asked))]
    everybody = crowd(dict(zip(names, asked, strict=True)), running=running, in_flight=in_flight)
    bound = 2 * running * max(habit.cost for habit in asked)

    for _ in range(12):
        everybody.steps(10)
        served = everybody.served()
        assert max(served.values()) - min(served.values()) <= bound


def test_long_requests_get_no_more_than_short_ones() -> None:
    two = crowd({"long": Habit(60, 20), "short": Habit(6, 2)})

    two.steps(400)

    served = two.served()
    assert 0.9 < served["long"] / served["short"] < 1.1


def test_many_requests_get_no_more_than_few() -> None:
    two = crowd({"many": Habit(8, 4, waiting=40), "few": Habit(8, 4, waiting=2)})

    two.steps(100)

    served = two.served()
    assert abs(served["many"] - served["few"]) <= 2 * Habit(8, 4).cost


def test_nobody_saves_up_what_he_did_not_ask_for() -> None:
    two = crowd({"busy": Habit(8, 4)})
    two.steps(200)
    before = two.served()["busy"]
    two.habits["late"] = Habit(8, 4)

    two.steps(100)

    served = two.served()
    assert abs(served["late"] - (served["busy"] - before)) <= 2 * Habit(8, 4).cost


def test_the_first_request_of_a_newcomer_comes_next() -> None:
    two = crowd({"busy": Habit(8, 4)})
    two.steps(10)
    two.habits["new"] = Habit(8, 4, waiting=1)
    started = len(two.starts)

    two.steps(10)

    assert "new" in two.starts[started : started + 2]


def test_to_leave_and_come_back_settles_no_debt() -> None:
    """`returning` asks for long answers, one at a time: with turns by requests it would be given ten times as much."""
    two = crowd({"waiting": Habit(4, 2), "returning": Habit(4, 40, waiting=1)})

    two.steps(600)

    served = two.served()
    assert served["returning"] - served["waiting"] <= 2 * Habit(4, 40).cost


def tenant_order(rig: Rig, tenants: dict[int, str]) -> Iterator[str]:
    rig.run()
    return (tenants[opened.sampling.seed] for step in rig.device.steps for opened in step.opened)


@pytest.mark.parametrize(("cache", "expected"), [(True, "babab"), (False, "baabb")])
def test_what_is_found_in_the_cache_costs_nothing(cache: bool, expected: str) -> None:
    rig = Rig(limits=limits(pages=64, page_size=4), policy=policy(running=1, cache=cache, shares_prefixes=True))
    rig.admit(admit(0, prompt_ids=range(40), tokens=1, tenant="z"))
    rig.step()
    rig.admit(admit(1, prompt_ids=range(40), tokens=1, tenant="b"))
    for request in (2, 3):
        rig.admit(admit(request, prompt=10, tokens=1, tenant="a"))
    for request in (4, 5):
        rig.admit(admit(request, prompt_ids=range(40), tokens=1, tenant="b"))

    started = tenant_order(rig, dict(enumerate("zbaabb")))

    assert ["z", *expected] == list(started)


def test_what_is_computed_again_after_a_preemption_is_nobodys_debt() -> None:
    rig = Rig(limits=limits(pages=8, page_size=4), policy=policy(running=2, cache=False))
    rig.admit(admit(1, prompt=8, tokens=16, tenant="a"))
    rig.admit(admit(2, prompt=8, tokens=16, tenant="b"))
    rig.admit(admit(3, prompt=1, tokens=1, tenant="c"))
    sequences = [rig.scheduler._open.by_id[request].sequences[0] for request in rig.scheduler._open.by_id]
    a, b, _ = [sequence.tenant for sequence in sequences]

    rig.run()

    assert rig.scheduler.statistics().counters.preemptions > 0
    assert (8 * PROMPT_TOKEN_COST + 16 * OUTPUT_TOKEN_COST,) * 2 == (a.served, b.served)


def test_names_that_come_once_do_not_pile_up() -> None:
    rig = Rig(policy=policy(running=1))
    rig.admit(admit(0, tokens=200, tenant="always"))
    for request in range(1, 300):
        rig.admit(admit(request, tokens=1, tenant=f"once {request}"))
        rig.abort(request) if request % 2 else rig.step()
        tenants = dict(rig.scheduler.statistics().maps)["tenants"]
        assert tenants <= 3 + rig.scheduler.statistics().open_requests
    rig.run()


def test_whoever_is_ahead_is_remembered_until_the_others_are_there_too() -> None:
    tenants = Tenants()
    other, ahead = (tenants.open_request(name, least_served=0) for name in ("other", "ahead"))
    ahead.served += 100
    tenants.close_request(ahead)

    tenants.open_request("new", least_served=99)
    assert ["other", "ahead", "new"] == [tenant.name for tenant in tenants]
    tenants.open_request("newer", least_served=100)
    assert ["other", "new", "newer"] == [tenant.name for tenant in tenants]
    assert 1 == other.open_requests


def test_with_nothing_open_there_is_no_tenant() -> None:
    tenants, random = Tenants(), Random(0)
    tenant = tenants.open_request("a", least_served=0)
    tenant.served += random.randrange(1, 100)

    tenants.close_request(tenant)

    assert 0 == tenants.count
