"""How long the scheduler takes for one decode step, beside a fixed loop of plain Python that tells how fast the machine is."""

import argparse
import statistics
import time
from collections.abc import Iterator

import attrs

from layered_llm.domain.columns import pack_i32, unpack_i8
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.domain.messages.text_scheduler import Admit, StepsTaken, TokenSampling
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.policy import SchedulingPolicy

PAGE_SIZE_TOKENS = 16
WORKER = TextId(0)

HELP = """\
Runs N choices that all decode, and measures what the scheduler does for one step: plan it, take its result, take the
text worker's credit for it. The device is left out: its result is made up outside of the measured time.

Read it so:
  plan, complete  median time of one step in each half, in microseconds
  step            their sum with the credit; while the device takes longer than this, the scheduler costs nothing
  p99             the same at the 99th percentile: steps in which many choices begin a new page are the slow ones
  / reference     step divided by the time of a fixed loop of plain Python, run in between: compare this column, not the
                  microseconds, between machines or on a busy one
Time for a step must not grow with the prompt: compare the rows of one N.
"""


@attrs.frozen(kw_only=True)
class Timings:
    """One measured scenario; one item for each step, in microseconds."""

    running: int
    prompt_tokens: int
    plan_us: list[float]
    complete_us: list[float]
    reference_us: list[float]

    @property
    def step_us(self) -> list[float]:
        return [plan + complete for plan, complete in zip(self.plan_us, self.complete_us, strict=True)]


def main() -> None:
    arguments = parse()
    print(
        f"{'running':>8} {'prompt':>8} {'plan':>8} {'complete':>9} {'step':>8} {'p99':>8} {'reference':>10} {'/ reference':>12}"
    )
    print(f"{'choices':>8} {'tokens':>8} {'µs':>8} {'µs':>9} {'µs':>8} {'µs':>8} {'µs':>10} {'':>12}")
    for running in arguments.running:
        for prompt_tokens in arguments.prompt_tokens:
            print(row(measure(running, prompt_tokens, arguments.steps)), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--running", type=int, nargs="+", default=[1, 64, 256], metavar="N", help="choices that run (default: 1 64 256)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, nargs="+", default=[16, 4096], metavar="T", help="length of each prompt (default: 16 4096)"
    )
    parser.add_argument("--steps", type=int, default=1000, metavar="S", help="steps that are measured (default: 1000)")
    return parser.parse_args()


def row(timings: Timings) -> str:
    step, reference = statistics.median(timings.step_us), statistics.median(timings.reference_us)
    p99 = sorted(timings.step_us)[int(len(timings.step_us) * 0.99)]
    return (
        f"{timings.running:>8} {timings.prompt_tokens:>8} {statistics.median(timings.plan_us):>8.1f} "
        f"{statistics.median(timings.complete_us):>9.1f} {step:>8.1f} {p99:>8.1f} {reference:>10.1f} {step / reference:>12.3f}"
    )


def measure(running: int, prompt_tokens: int, steps: int) -> Timings:
    scheduler = filled(running, prompt_tokens, steps)
    timings = Timings(running=running, prompt_tokens=prompt_tokens, plan_us=[], complete_us=[], reference_us=[])
    for _ in range(steps):
        timings.reference_us.append(reference_us())
        start = time.perf_counter()
        step = scheduler.plan()
        planned = time.perf_counter()
        if not isinstance(step, ExecuteStep) or step.row_count != running:
            raise SystemExit(f"not a step of {running} rows: {step}")
        result = result_of(step, running)
        resumed = time.perf_counter()
        scheduler.complete(result)
        scheduler.handle(WORKER, StepsTaken(step=step.step))
        timings.plan_us.append((planned - start) * 1e6)
        timings.complete_us.append((time.perf_counter() - resumed) * 1e6)
    return timings


def filled(running: int, prompt_tokens: int, steps: int) -> Scheduler:
    """A scheduler whose choices have all been prefilled."""
    output_tokens = steps + 2
    pages = running * (-(-(prompt_tokens + output_tokens) // PAGE_SIZE_TOKENS))
    scheduler = Scheduler(
        limits=RuntimeLimits(
            pages=pages,
            page_size_tokens=PAGE_SIZE_TOKENS,
            slots=running,
            context_tokens=prompt_tokens + output_tokens,
            vocabulary_size=1000,
        ),
        policy=SchedulingPolicy(
            max_step_tokens=running * (prompt_tokens + 1),
            max_running_choices=running,
            max_queued_requests=running,
            max_unacknowledged_steps=4,
            max_steps_in_flight=1,
        ),
    )
    for admit in admits(running, prompt_tokens, output_tokens):
        scheduler.handle(WORKER, admit)
    step = scheduler.plan()
    if not isinstance(step, ExecuteStep):
        raise SystemExit("nothing was planned")
    scheduler.complete(result_of(step, running))
    scheduler.handle(WORKER, StepsTaken(step=step.step))
    return scheduler


def admits(running: int, prompt_tokens: int, output_tokens: int) -> Iterator[Admit]:
    sampling = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=(2,))
    for request in range(running):
        # Prompts of slightly different length, so that not all choices begin a page in the same step.
        prompt_ids = pack_i32(range(prompt_tokens - request % PAGE_SIZE_TOKENS))
        yield Admit(request=RequestId(request), choices=1, prompt_ids=prompt_ids, max_tokens=output_tokens, sampling=sampling)


def result_of(step: ExecuteStep, running: int) -> StepCompleted:
    sampled = sum(unpack_i8(step.samples))
    return StepCompleted(step=step.step, token_ids=pack_i32([7] * sampled), device_us=0, open_slots=running)


def reference_us() -> float:
    """Time of a fixed loop over a dictionary and integers, the stuff that the scheduler is made of."""
    start = time.perf_counter()
    table: dict[int, int] = {}
    value = 1
    for _ in range(2000):
        value = (value * 48271) % 2147483647
        table[value % 256] = table.get(value % 256, 0) + 1
    return (time.perf_counter() - start) * 1e6


if __name__ == "__main__":
    main()
