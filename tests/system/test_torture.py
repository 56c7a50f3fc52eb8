from pathlib import Path
from random import Random

import pytest

from support.torture_audit import Memory
from support.torture_clients import Answer, read_answer
from support.torture_visits import COMPLETIONS, Asked, draw_visit
from system.torture import Torture, growing, run, tortured_server

STREAM = Asked(path=COMPLETIONS, body={"n": 1, "stream": True})
PIECE = 'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
END = 'data: {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}\n\n'
DONE = "data: [DONE]\n\n"


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


def test_an_answer_ends_once() -> None:
    assert Answer(texts=("ab",), reasons=("length",)) == read_answer(STREAM, PIECE + END + DONE)


@pytest.mark.parametrize(
    "body",
    [PIECE + DONE, PIECE + END, END + END + DONE, END + PIECE + DONE, END + DONE + DONE],
    ids=["no-end", "no-done", "two-ends", "text-behind-the-end", "two-dones"],
)
def test_an_answer_that_does_not_end_once_is_refused(body: str) -> None:
    with pytest.raises(AssertionError):
        read_answer(STREAM, body)


@pytest.mark.parametrize(("step_kib", "expected"), [(0, []), (5, []), (100, ["text 1"])])
def test_growth_is_judged_over_the_second_half(step_kib: int, expected: list[str]) -> None:
    memory = Memory()
    memory.kib["text 1"] = [10_000, 30_000, *(50_000 + step_kib * look for look in range(20))]

    assert expected == growing(memory)
