import io
import json
import re
from pathlib import Path

import pytest
import trio
import trio.testing

from layered_llm.client.bench.records import Failure, Progress, RunRecord, Tally, progress_line, show_progress
from layered_llm.client.bench.report import report_json, report_text
from layered_llm.client.bench.statistics import summarize
from support.client_bench import make_record, make_run, make_usage

BUSY = Failure(kind="HTTP 429", message="queue\nfull " + "x" * 200)
GOOD = make_record(index=1, due_s=5.0, chunks_s=(5.1, 5.2), ended_s=5.3, usage=make_usage(prompt=30, completion=4, cached=16))
BAD = make_record(index=0, due_s=4.0, ended_s=4.5, failure=BUSY)
RUN = make_run(GOOD, BAD, aborted=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(run: RunRecord) -> str:
    return report_text("the title", summarize(run))


def test_report_says_everything_once() -> None:
    expected = """\
the title

requests    1 completed, 1 failed, 1 aborted; at most 2 at once
duration    2.00 s
throughput  0.50 requests/s
            2.0 output tokens/s
            15.0 prompt tokens/s
tokens      4 output, 30 prompt, 16 of these cached

milliseconds                       mean        p50        p90        p99        max
time to first token              100.00     100.00     100.00     100.00     100.00
gap between chunks               100.00     100.00     100.00     100.00     100.00
time per output token             33.33      33.33      33.33      33.33      33.33
end to end                       300.00     300.00     300.00     300.00     300.00

errors
     1  HTTP 429  queue full xxxx"""
    assert report(RUN).startswith(expected)


def test_long_messages_are_cut() -> None:
    assert 128 >= max(len(line) for line in report(RUN).splitlines())


def test_report_without_token_counts_claims_none() -> None:
    text = report(make_run(make_record(chunks_s=(0.5,))))

    assert "the server sent no token counts for 1 requests" in text
    assert "tokens/s" not in text
    assert re.search(r"time per output token +-", text)


def test_report_warns_of_a_slow_client() -> None:
    assert "client lag  p99 50.0 ms" in report(make_run(make_record(due_s=1.0, sent_s=1.05)))
    assert "client lag" not in report(make_run(make_record(due_s=1.0, sent_s=1.001)))


def test_report_of_an_interrupted_empty_run() -> None:
    assert "duration    0.00 s, interrupted" in report(make_run(duration_s=0.0, interrupted=True))


def test_json_is_in_order_and_on_one_origin() -> None:
    value = json.loads(json.dumps(report_json({"seed": 0}, RUN, summarize(RUN))))

    assert {"seed": 0} == value["settings"]
    assert 4 == value["summary"]["tokens"]["output"]
    assert [0, 1] == [request["index"] for request in value["requests"]]
    assert [1.1, 1.2] == pytest.approx(value["requests"][1]["chunks_s"])
    assert {"prompt_tokens": 30, "completion_tokens": 4, "cached_tokens": 16} == value["requests"][1]["usage"]
    assert "HTTP 429" == value["requests"][0]["error"]["kind"]


def test_progress_line() -> None:
    progress = Progress(elapsed_s=4.0, ended=12, failed=1, open=8, chunks=200, output_tokens=400)

    assert "12/100 done, 1 failed, 8 open | 100.0 tokens/s, 50.0 chunks/s | 4 s" == progress_line(progress, 100)
    assert progress_line(progress, None).startswith("12 done")


async def test_progress_on_a_terminal_leaves_no_trace(autojump_clock: trio.testing.MockClock) -> None:
    out = Terminal()
    with trio.move_on_after(1.1):
        await show_progress(Tally(), 100, out)

    lines = out.getvalue().split("\r\x1b[K")
    assert 5 == sum("0/100 done" in line for line in lines)
    assert "" == lines[-1]
    assert "\n" not in out.getvalue()


async def test_progress_in_a_log_is_a_line_now_and_then(autojump_clock: trio.testing.MockClock) -> None:
    out = io.StringIO()
    with trio.move_on_after(25.0):
        await show_progress(Tally(), 100, out)

    assert 2 == len(out.getvalue().splitlines())


@pytest.mark.parametrize("run", [RUN, make_run(), make_run(make_record())])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot_of_any_run(tmp_path: Path, run: RunRecord, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    from layered_llm.client.bench.plot import save_plot

    path = tmp_path / f"run{suffix}"
    save_plot("the title", run, path)

    assert path.stat().st_size > 5_000
