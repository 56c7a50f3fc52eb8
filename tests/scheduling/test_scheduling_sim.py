"""The simulator of `benchmarks`, by its command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
