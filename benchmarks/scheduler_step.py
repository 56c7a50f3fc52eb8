"""How long the scheduler takes for one decode step and for finding a prefix, beside a fixed loop of plain Python that tells how
fast the machine is."""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
from benchmarks.beside import EXPLANATION, THIS, Checkout, Pair, add_arguments, compare, rounds_of
from benchmarks.peers.protocol import Setup
from benchmarks.worker_process import ROOT, Worker, worker

from layered_llm.domain import placement  # a checkout of before has no CacheRoot: only the prefix cache needs one
from layered_llm.domain.columns import pack_i32, unpack_i8
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, StepCompleted
from layered_llm.domain.messages.text_scheduler import Admit, StepsTaken, TokenSampling
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.pages import NO_STEP, PageStore
from layered_llm.scheduling.policy import SchedulingPolicy

PAGE_SIZE_TOKENS = 16
WORKER = TextId(0)
CALL_TIMEOUT_S = 120.0

HELP = (
    """\
Runs N choices that all decode, and measures what the scheduler does for one step: plan it, take its result, take the
text worker's credit for it. The device is left out: its result is made up outside of the measured time.

Read it so:
  plan, complete  median time of one step in each half, in microseconds
  step            their sum with the credit; while the device takes longer than this, the scheduler costs nothing
  p99             the same at the 99th percentile: steps in which many choices begin a new page are the slow ones
  / reference     step divided by the time of a fixed loop of plain Python, run in between: compare this column, not the
                  microseconds, between machines or on a busy one
Time for a step must not grow with the prompt: compare the rows of one N.

Then the prefix cache by itself, with one prompt among many others that are kept:
  find, one edge      the whole prompt is known and nobody's prompt branches off it
  find, many nodes    the same, but another prompt branches off behind each of its pages
  find, unknown       nothing is known of it
  keep                a computed prompt is added
  take, all evicted   pages for the prompt, out of a pool without a free page, from other prompts of one page each

With --beside CHECKOUT, the column / reference of the steps of both schedulers:
"""
    + EXPLANATION
)


@attrs.frozen(kw_only=True)
class Timings:
    """One measured scenario; one item for each step, in microseconds."""

    running: int
    prompt_tokens: int
    prefix_cache: bool
    plan_us: list[float]
    complete_us: list[float]
    reference_us: list[float]

    @property
    def step_us(self) -> list[float]:
        return [plan + complete for plan, complete in zip(self.plan_us, self.complete_us, strict=True)]


def main() -> None:
    arguments = parse()
    if arguments.beside is not None:
        raise SystemExit(not beside(arguments.beside, arguments))
    print(
        f"{'running':>8} {'prompt':>8} {'prefix':>8} {'plan':>8} {'complete':>9} {'step':>8} {'p99':>8} {'reference':>10} "
        f"{'/ reference':>12}"
    )
    print(f"{'choices':>8} {'tokens':>8} {'cache':>8} {'µs':>8} {'µs':>9} {'µs':>8} {'µs':>8} {'µs':>10} {'':>12}")
    for running in arguments.running:
        for prompt_tokens in arguments.prompt_tokens:
            for prefix_cache in (False, True):
                print(row(measure(running, prompt_tokens, arguments.steps, prefix_cache=prefix_cache)), flush=True)
    print(f"\n{'prefix of a prompt':<20} {'tokens':>8} {'page size':>10} {'µs':>8} {'/ reference':>12}")
    for page_size in (PAGE_SIZE_TOKENS, 1):
        for name, action in PREFIX_ACTIONS.items():
            print(prefix_row(name, action, page_size), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--running", type=int, nargs="+", default=[1, 64, 256], metavar="N", help="choices that run (default: 1 64 256)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, nargs="+", default=[16, 4096], metavar="T", help="length of each prompt (default: 16 4096)"
    )
    parser.add_argument("--steps", type=int, default=1000, metavar="S", help="steps that are measured (default: 1000)")
    parser.add_argument("--rounds", type=int, metavar="N", help="with --beside: measurements of each (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --beside: write all measurements to FILE")
    add_arguments(parser)
    return parser.parse_args()


def beside(other: Checkout, arguments: argparse.Namespace) -> bool:
    """Measures the steps of both checkouts' schedulers, each in a process of its own; whether this one is as fast."""
    with contextlib.ExitStack() as stack:
        this, that = (stack.enter_context(scheduler_worker(checkout)) for checkout in (THIS, other))
        pairs = [
            Pair(
                name=f"{running:>4} choices, {prompt_tokens:>5} tokens, prefix cache {'on' if prefix_cache else 'off'}",
                unit="/ reference",
                more_is_better=False,
                this=partial(step_by_reference, this, running, prompt_tokens, arguments.steps, prefix_cache=prefix_cache),
                other=partial(step_by_reference, that, running, prompt_tokens, arguments.steps, prefix_cache=prefix_cache),
            )
            for running in arguments.running
            for prompt_tokens in arguments.prompt_tokens
            for prefix_cache in (False, True)
        ]
        rounds = rounds_of(arguments)
        return compare(other, pairs, rounds=rounds, bound=arguments.bound, json_file=arguments.json)


@contextlib.contextmanager
def scheduler_worker(checkout: Checkout) -> Iterator[Worker]:
    """A checkout's scheduler, driven by its own benchmarks; by those of this tree where it is older than they are."""
    module = Path("benchmarks") / "peers" / "own_scheduler.py"
    directory = checkout.directory if (checkout.directory / module).exists() else ROOT
    command = checkout.python("-m", "benchmarks.peers.own_scheduler")
    with worker(command, checkout.environment, directory) as opened:
        opened.open(Setup(contexts=[], threads=1, context_tokens=0), timeout_s=CALL_TIMEOUT_S)
        yield opened


def step_by_reference(scheduler: Worker, running: int, prompt_tokens: int, steps: int, *, prefix_cache: bool) -> float:
    """The median step by the median reference."""
    step_us, reference = scheduler.call(
        "step_us",
        timeout_s=CALL_TIMEOUT_S,
        running=running,
        prompt_tokens=prompt_tokens,
        steps=steps,
        prefix_cache=prefix_cache,
    )
    ratio: float = step_us / reference
    return ratio


def row(timings: Timings) -> str:
    step, reference = statistics.median(timings.step_us), statistics.median(timings.reference_us)
    p99 = sorted(timings.step_us)[int(len(timings.step_us) * 0.99)]
    plan, complete = statistics.median(timings.plan_us), statistics.median(timings.complete_us)
    return (
        f"{timings.running:>8} {timings.prompt_tokens:>8} {'on' if timings.prefix_cache else 'off':>8} {plan:>8.1f} "
        f"{complete:>9.1f} {step:>8.1f} {p99:>8.1f} {reference:>10.1f} {step / reference:>12.3f}"
    )


def measure(running: int, prompt_tokens: int, steps: int, *, prefix_cache: bool) -> Timings:
    scheduler = filled(running, prompt_tokens, steps, prefix_cache=prefix_cache)
    timings = Timings(
        running=running, prompt_tokens=prompt_tokens, prefix_cache=prefix_cache, plan_us=[], complete_us=[], reference_us=[]
    )
    for _ in range(steps):
        timings.reference_us.append(reference_us())
        start = time.perf_counter()
        next_step = scheduler.plan()
        planned = time.perf_counter()
        step = message_of(next_step)
        if not isinstance(step, ExecuteStep) or step.row_count != running:
            raise SystemExit(f"not a step of {running} rows: {step}")
        result = result_of(step, running)
        resumed = time.perf_counter()
        scheduler.complete(result)
        scheduler.handle(WORKER, StepsTaken(step=step.step))
        timings.plan_us.append((planned - start) * 1e6)
        timings.complete_us.append((time.perf_counter() - resumed) * 1e6)
    return timings


def filled(running: int, prompt_tokens: int, steps: int, *, prefix_cache: bool) -> Scheduler:
    """A scheduler whose choices have all been prefilled."""
    output_tokens = steps + 2
    pages = running * (1 - (-(prompt_tokens + output_tokens) // PAGE_SIZE_TOKENS))
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
            prefix_cache=prefix_cache,
        ),
    )
    for admit in admits(running, prompt_tokens, output_tokens):
        scheduler.handle(WORKER, admit)
    step = message_of(scheduler.plan())
    if not isinstance(step, ExecuteStep):
        raise SystemExit("nothing was planned")
    scheduler.complete(result_of(step, running))
    scheduler.handle(WORKER, StepsTaken(step=step.step))
    return scheduler


def admits(running: int, prompt_tokens: int, output_tokens: int) -> Iterator[Admit]:
    sampling = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=(2,))
    for request in range(running):
        # Prompts of slightly different length, so that not all choices begin a page in the same step.
        first = request * prompt_tokens
        prompt_ids = pack_i32(range(first, first + prompt_tokens - request % PAGE_SIZE_TOKENS))
        yield Admit(request=RequestId(request), choices=1, prompt_ids=prompt_ids, max_tokens=output_tokens, sampling=sampling)


def message_of(planned: object) -> object:
    """What is sent to the runtime; a checkout of before has nothing around it."""
    return getattr(planned, "message", planned)


def result_of(step: ExecuteStep, running: int) -> StepCompleted:
    sampled = sum(unpack_i8(step.samples))
    return StepCompleted(step=step.step, token_ids=pack_i32([7] * sampled), device_us=0, open_slots=running)


def find_one_edge(page_size: int) -> Callable[[], object]:
    store, pages = store_with_others(page_size)
    keep(store, PROMPT, pages)
    return lambda: store.find(placement.CacheRoot(), PROMPT)


def find_many_nodes(page_size: int) -> Callable[[], object]:
    store, pages = store_with_others(page_size)
    keep(store, PROMPT, pages)
    for end in range(page_size, PROMPT_TOKENS, page_size):
        branch = PROMPT[: 4 * end] + pack_i32([-1] * page_size)
        keep(store, branch, end // page_size + 1)
    return lambda: store.find(placement.CacheRoot(), PROMPT)


def find_unknown(page_size: int) -> Callable[[], object]:
    store, _ = store_with_others(page_size)
    return lambda: store.find(placement.CacheRoot(), PROMPT)


def keep_prompt(page_size: int) -> Callable[[], object]:
    store, pages = store_with_others(page_size)
    place, own = store.find(placement.CacheRoot(cache_salt="fresh"), b"").place, store.take(pages)
    return lambda: store.keep(place, PROMPT, own)


def take_all_evicted(page_size: int) -> Callable[[], object]:
    store, pages = store_with_others(page_size)
    store.take(store.free)
    return lambda: store.take(pages)


PROMPT_TOKENS = 4000
PREFIX_REPEATS = 9
PROMPT = pack_i32(range(PROMPT_TOKENS))
PREFIX_ACTIONS: dict[str, Callable[[int], Callable[[], object]]] = {
    "find, one edge": find_one_edge,
    "find, many nodes": find_many_nodes,
    "find, unknown": find_unknown,
    "keep": keep_prompt,
    "take, all evicted": take_all_evicted,
}


def store_with_others(page_size: int) -> tuple[PageStore, int]:
    """Has as many other prompts as pages of the prompt, of one page each, and room; with it the pages of the prompt."""
    pages = PROMPT_TOKENS // page_size
    store = PageStore(pages=4 * pages, page_size_tokens=page_size, keeps_prefixes=True)
    for other in range(pages):
        keep(store, pack_i32([-2 - other] * page_size), 1)
    return store, pages


def keep(store: PageStore, token_ids: bytes, pages: int) -> None:
    """Adds a prompt that nobody holds."""
    own = store.take(pages)
    prefix = store.keep(store.find(placement.CacheRoot(), b"").place, token_ids, own)
    store.give_back([page for page, kept in zip(own, prefix.pages, strict=True) if page != kept], NO_STEP)
    store.unlock(prefix.place, pages, NO_STEP)


def prefix_row(name: str, action: Callable[[int], Callable[[], object]], page_size: int) -> str:
    times_us: list[float] = []
    references_us: list[float] = []
    for _ in range(PREFIX_REPEATS):
        run = action(page_size)
        references_us.append(reference_us())
        start = time.perf_counter()
        run()
        times_us.append((time.perf_counter() - start) * 1e6)
    time_us = statistics.median(times_us)
    ratio = time_us / statistics.median(references_us)
    return f"{name:<20} {PROMPT_TOKENS:>8} {page_size:>10} {time_us:>8.1f} {ratio:>12.3f}"


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
