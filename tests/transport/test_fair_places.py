import trio
from trio.testing import MockClock

from layered_llm.transport.fair_places import FairPlaces


async def test_a_place_that_is_free_is_had_at_once(autojump_clock: MockClock) -> None:
    places = FairPlaces(1)
    async with places.enter("a", 1):
        assert not places.has_waiting


async def test_no_more_work_than_there_are_places(autojump_clock: MockClock) -> None:
    places, working, most = FairPlaces(2), 0, 0

    async def work() -> None:
        nonlocal working, most
        async with places.enter("a", 1):
            working += 1
            most = max(most, working)
            await trio.sleep(1)
            working -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(work)
    assert 2 == most


async def test_tenants_take_turns(autojump_clock: MockClock) -> None:
    places, order = FairPlaces(1), []

    async def work(name: str) -> None:
        async with places.enter(name[0], 1):
            order.append(name)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for name in ("a1", "a2", "a3", "b1"):
            nursery.start_soon(work, name)
            await trio.testing.wait_all_tasks_blocked()
    assert ["a1", "b1", "a2", "a3"] == order


async def test_one_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next(autojump_clock: MockClock) -> None:
    places, order = FairPlaces(1), []

    async def work(name: str, scope: trio.CancelScope) -> None:
        with scope:
            async with places.enter("a", 1):
                order.append(name)
                await trio.sleep(1)

    left = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        for name, scope in (("first", trio.CancelScope()), ("left", left), ("next", trio.CancelScope())):
            nursery.start_soon(work, name, scope)
            await trio.testing.wait_all_tasks_blocked()
        left.cancel()
    assert ["first", "next"] == order
    assert not places.has_waiting


async def test_one_that_is_cancelled_at_work_frees_its_place(autojump_clock: MockClock) -> None:
    places = FairPlaces(1)
    with trio.move_on_after(1):
        async with places.enter("a", 1):
            await trio.sleep_forever()
    with trio.fail_after(1):
        async with places.enter("b", 1):
            assert not places.has_waiting
