"""The simulator of `benchmarks`, by its command line."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from layered_llm.domain.columns import unpack_i8, unpack_i32
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep
from layered_llm.service.workers.schedule_trace import open_trace
from support.scheduling_rig import Rig, admit, limits, policy

ROOT = Path(__file__).parents[2]
SMALL = ("--requests", "40", "--system-tokens", "200", "--prompt-tokens", "300", "--output-tokens", "20")
FIRST = "prefix-cache on, in-flight 2, order fcfs, chunk 512, max-token-gap-ms 0"


def simulate(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.scheduling_sim", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("simulated")
    done = simulate(*SMALL, "--json", str(directory / "r.json"), "--plot", str(directory / "r.png"))
    assert 0 == done.returncode, done.stderr
    report: dict[str, Any] = json.loads((directory / "r.json").read_text())
    return report | {"table": done.stdout, "picture": (directory / "r.png").read_bytes()}


def by_policy(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in report["policies"]}


def test_each_policy_is_a_line(report: dict[str, Any]) -> None:
    names = [
        FIRST,
        "prefix-cache off",
        "in-flight 1",
        "order lpm",
        "order priority",
        "chunk 128",
        "chunk 2048",
        "max-token-gap-ms 20",
    ]

    assert names == list(by_policy(report))
    assert len({len(line) for line in report["table"].splitlines()[4:]}) == 1


def test_every_request_is_answered_under_every_policy(report: dict[str, Any]) -> None:
    answered = {round(row["requests_per_s"] * row["simulated_s"]) for row in report["policies"]}
    tokens = {round(row["output_tokens_per_s"] * row["simulated_s"]) for row in report["policies"]}

    assert ({40}, 1) == (answered, len(tokens))


def test_shared_prompts_are_cached_and_come_sooner(report: dict[str, Any]) -> None:
    rows = by_policy(report)

    assert (0, 0) == (rows["prefix-cache off"]["cached_share"], rows[FIRST]["preemptions"])
    assert rows[FIRST]["cached_share"] > 0.4
    assert rows[FIRST]["ttft_s"]["p90"] < rows["prefix-cache off"]["ttft_s"]["p90"]


def test_a_bound_on_the_gap_holds(report: dict[str, Any]) -> None:
    rows = by_policy(report)

    assert rows["max-token-gap-ms 20"]["gap_s"]["p99"] < 0.020 < rows[FIRST]["gap_s"]["p99"]


def test_the_picture_is_one(report: dict[str, Any]) -> None:
    assert report["picture"].startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_table() -> None:
    words = (
        *SMALL,
        "--traffic",
        "poisson",
        "--device",
        "cpu-small",
        "--order",
        "priority",
        "fcfs",
        "--in-flight",
        "1",
        "--cross",
    )

    first, second = simulate(*words), simulate(*words)

    assert 0 == first.returncode, first.stderr
    assert first.stdout == second.stdout


def test_a_value_that_makes_no_sense_is_refused() -> None:
    done = simulate("--requests", "0")

    assert 2 == done.returncode
    assert "argument --requests: must be at least 1, got 0" in done.stderr


STEP_US, PREFILL_TOKEN_US, DECODE_ROW_US, CONTEXT_ROW_US, CONTEXT_PAIR_US = 30_000, 900, 2_500, 4.0, 0.5


def cost_us(step: ExecuteStep) -> int:
    time_us: float = STEP_US
    columns = (unpack_i32(step.starts), unpack_i32(step.counts), unpack_i8(step.samples))
    for start, count, samples in zip(*columns, strict=True):
        time_us += DECODE_ROW_US if count == 1 and samples else PREFILL_TOKEN_US * count
        time_us += (CONTEXT_ROW_US + CONTEXT_PAIR_US * count) * start
    return round(time_us)


def write_trace(path: Path, *, stalls: bool = False) -> None:
    """Steps of all kinds on a device whose costs are known; every tenth may be held up by something else."""
    random = Random(1)
    rig = Rig(limits=limits(pages=2048, page_size=16), policy=policy(budget=256, running=16))
    rig.device.cost = cost_us
    now_s = 5.0
    with open_trace(str(path)) as trace:
        assert trace is not None
        for request in range(40):
            rig.admit(admit(request, prompt=random.choice([5, 40, 300, 900]), tokens=random.randint(2, 20)))
            for _ in range(random.randint(0, 6)):
                if rig.launch() is None:
                    break
                trace.planned(rig.trace, now_s)
                result = rig.device.launched[0].result
                rig.finish()
                held_us = 3 * result.device_us if stalls and result.step % 10 == 0 else 0
                now_s += (result.device_us + held_us + 700) / 1e6
                trace.completed(attrs.evolve(result, device_us=result.device_us + held_us), now_s)
                now_s += 0.001


@pytest.mark.parametrize("stalls", [False, True])
def test_a_trace_gives_the_costs_of_its_device(tmp_path: Path, stalls: bool) -> None:
    write_trace(tmp_path / "trace.json", stalls=stalls)
    words = ("--calibrate", str(tmp_path / "trace.json"), "--rate", "1", "--requests", "5", "--traffic", "poisson")

    done = simulate(*words, "--order", "fcfs", "--chunk", "64", "--json", str(tmp_path / "r.json"))

    assert 0 == done.returncode, done.stderr
    fitted = json.loads((tmp_path / "r.json").read_text())["settings"]
    parts = ("step_us", "prefill_token_us", "decode_row_us", "context_row_us", "context_pair_us")
    expected = [STEP_US, PREFILL_TOKEN_US, DECODE_ROW_US, CONTEXT_ROW_US, CONTEXT_PAIR_US]
    assert pytest.approx(expected, rel=0.02) == [fitted[part] for part in parts]
    assert pytest.approx(700, abs=2) == fitted["host_us"] or stalls
    assert "error of a step: median 0.0%" in done.stdout


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("[\n{")

    done = simulate("--calibrate", str(tmp_path / "trace.json"), "--rate", "1")

    assert 1 == done.returncode
    assert "is no trace" in done.stderr
