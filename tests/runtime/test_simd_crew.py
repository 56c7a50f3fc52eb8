import gc
import os
import signal
import threading

import numpy as np
import pytest

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.matrices import WeightFormat
from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, PanelLayout, byte_panels
from layered_llm.runtime.cpu.simd.compiler import load_program
from layered_llm.runtime.cpu.simd.control import TASK_ROWS, Command, TaskWord, Word
from layered_llm.runtime.cpu.simd.crew import Crew
from layered_llm.runtime.cpu.simd.kernels.linear import scratch_floats
from layered_llm.runtime.cpu.simd.memory_blocks import address_of
from layered_llm.runtime.cpu.simd.step_kernels import Needs
from layered_llm.runtime.cpu.simd.tasks import gate_up_tasks, tasks_of
from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.models.decoder_weights import LinearWeights
from support.eventually import eventually
from support.runtime_options import KERNEL_CACHE
from support.simd_kernels import arranged, random_matrix, this_machine


def crew_of(threads: int) -> Crew:
    needs = Needs(formats=frozenset({WeightFormat.Q8_0}), kv_number_bytes=4)
    return Crew(load_program(this_machine(), needs, KERNEL_CACHE), threads=threads)


def step_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("step-")]


def head_logits(crew: Crew, x: Float32s, rounds: int) -> list[bytes]:
    """What the head command computes, again and again."""
    rng = np.random.default_rng(0)
    matrix = arranged(random_matrix(rng, WeightFormat.Q8_0, 1003, x.shape[1]))
    tasks, norm, logits = tasks_of(matrix), np.ones(x.shape[1], np.float32), np.empty((len(x), matrix.rows), np.float32)
    places = np.arange(len(x))
    normed = np.empty_like(x)
    scratch = np.empty((crew.threads, scratch_floats(TASK_ROWS, x.shape[1])), np.float32)
    values = {
        Word.HEAD_TOKENS: len(x),
        Word.HEAD_PLACES: address_of(places),
        Word.HIDDEN: x.shape[1],
        Word.X: address_of(x),
        Word.NORMED: address_of(normed),
        Word.FINAL_NORM: address_of(norm),
        Word.HEAD_TASKS: address_of(tasks),
        Word.HEAD_TASK_COUNT: len(tasks),
        Word.VOCABULARY: matrix.rows,
        Word.LOGITS: address_of(logits),
        Word.SCRATCH: address_of(scratch),
        Word.SCRATCH_BYTES: scratch.strides[0],
    }
    for word, value in values.items():
        crew.control[word] = value
    results = []
    for _ in range(rounds):
        logits[:] = np.nan
        crew.carry_out(Command.HEAD)
        results.append(logits.tobytes())
    return results


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_computes_the_same(threads: int) -> None:
    x = np.random.default_rng(1).normal(0, 1, (9, 96)).astype(np.float32)
    (expected,) = head_logits(crew_of(1), x, 1)
    crew = crew_of(threads)
    assert {expected} == set(head_logits(crew, x, 50))
    crew.close()
    assert not np.isnan(np.frombuffer(expected, np.float32)).any()


def test_closing_ends_the_threads_and_may_be_repeated() -> None:
    gc.collect()
    before = len(step_threads())
    crew = crew_of(3)
    assert 2 == len(step_threads()) - before
    crew.close()
    crew.close()
    assert 0 == len(step_threads()) - before


def test_a_closed_crew_takes_no_work() -> None:
    crew = crew_of(2)
    crew.close()
    with pytest.raises(InvariantViolated, match="closed crew"):
        crew.carry_out(Command.HEAD)


def test_a_forked_process_does_not_wait_for_threads_that_it_has_not() -> None:
    crew = crew_of(2)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends the child where it waits
        crew.control[Word.ARRIVED] = 0  # as if the other thread had been on its way to the barrier
        crew.close()
        os._exit(0)
    assert (child, 0) == os.waitpid(child, 0)


def test_a_forgotten_crew_ends_by_itself() -> None:
    gc.collect()
    before = len(step_threads())
    crew = crew_of(2)
    del crew
    gc.collect()
    eventually(lambda: len(step_threads()) == before)


def test_tasks_cover_each_row_once() -> None:
    matrix = random_matrix(np.random.default_rng(0), WeightFormat.F16, 50, 64)
    tasks = tasks_of(matrix)
    rows = [row for task in tasks for row in range(task[TaskWord.OUTPUT], task[TaskWord.OUTPUT] + task[TaskWord.ROWS])]
    assert list(range(50)) == rows
    assert [address_of(matrix.data[row:]) for row in tasks[:, TaskWord.OUTPUT]] == tasks[:, TaskWord.WEIGHTS].tolist()


def test_weights_that_do_not_lie_in_panels_are_refused() -> None:
    matrix = random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 4, 32)
    with pytest.raises(InvariantViolated, match="Q8_0 from a WeightMatrix"):
        tasks_of(matrix)


@pytest.mark.parametrize(("layout", "panels"), [(FLOAT_PANELS, [0, 8, 16]), (byte_panels(16), [0, 2, 4])])
def test_tasks_begin_with_the_panels_of_their_rows(layout: PanelLayout, panels: list[int]) -> None:
    matrix = arranged(random_matrix(np.random.default_rng(0), WeightFormat.Q4_1, 70, 64), layout)
    tasks = tasks_of(matrix)
    assert panels == [(at - address_of(matrix.data)) // matrix.data.shape[1] for at in tasks[:, TaskWord.WEIGHTS].tolist()]
    assert [32, 32, 6] == tasks[:, TaskWord.ROWS].tolist()


@pytest.mark.parametrize(
    ("weight_format", "layout", "takes_digits"),
    [
        (WeightFormat.Q8_0, byte_panels(16), True),
        (WeightFormat.Q8_0, FLOAT_PANELS, False),
        (WeightFormat.F16, byte_panels(16), False),
    ],
)
def test_only_panels_for_bytes_are_multiplied_with_digits(
    weight_format: WeightFormat, layout: PanelLayout, takes_digits: bool
) -> None:
    tasks = tasks_of(arranged(random_matrix(np.random.default_rng(0), weight_format, 40, 64), layout))
    assert [takes_digits] * 2 == tasks[:, TaskWord.TAKES_DIGITS].tolist()


def test_a_gate_and_the_up_projection_are_cut_alike() -> None:
    matrix = arranged(random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 80, 32), FLOAT_PANELS)
    tasks = gate_up_tasks(LinearWeights(matrix=matrix, bias=None), takes_digits=False)
    panels = (tasks[:, TaskWord.WEIGHTS] - address_of(matrix.data)) // matrix.data.shape[1]
    assert [(0, 32), (10, 32), (8, 8), (18, 8)] == list(zip(panels.tolist(), tasks[:, TaskWord.ROWS].tolist(), strict=True))


def test_a_gate_whose_result_is_no_whole_blocks_of_digits_is_refused() -> None:
    matrix = arranged(random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 96, 32), FLOAT_PANELS)
    with pytest.raises(InvariantViolated, match="48 rows of a gate in tasks of 32 are no whole blocks"):
        gate_up_tasks(LinearWeights(matrix=matrix, bias=None), takes_digits=True)


def test_a_gate_that_ends_within_a_panel_is_refused() -> None:
    matrix = arranged(random_matrix(np.random.default_rng(0), WeightFormat.Q8_0, 12, 32), FLOAT_PANELS)
    with pytest.raises(InvariantViolated, match="6 rows of a gate"):
        gate_up_tasks(LinearWeights(matrix=matrix, bias=None), takes_digits=False)
