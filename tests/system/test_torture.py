from pathlib import Path
from random import Random

from support.torture_visits import draw_visit
from system.torture import Torture, run, tortured_server


async def test_300_random_disconnects_leave_nothing_behind(tmp_path: Path) -> None:
    with tortured_server(tmp_path / "model") as server:
        torture = Torture(server, Random(1))
        books = await run(torture, disconnects=300)

    assert 300 == sum(torture.kinds.values())
    assert 0 < torture.stayed
    assert 0 < books.emitted == books.handled + books.late
    assert 0 < books.preempted
    assert 0 < books.evicted


def test_visits_can_be_drawn_again_from_their_seed() -> None:
    first, second = Random(7), Random(7)

    assert [draw_visit(first) for _ in range(50)] == [draw_visit(second) for _ in range(50)]
