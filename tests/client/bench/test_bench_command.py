import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from layered_llm.client.bench import add_bench_arguments, run_bench
from layered_llm.client.bench.load import ClosedLoop, Limits, OpenLoop
from layered_llm.client.bench.prompts import WordRange
from layered_llm.client.bench.settings import BenchSettings, read_settings
from support.client_fakes import DONE, chat_chunk, event, http_server_in_thread, send_head, send_json, send_piece, usage_chunk

MODELS = {"object": "list", "data": [{"id": "tiny"}]}


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench")
    add_bench_arguments(parser)
    return parser.parse_args(flags)


def settings(*flags: str) -> BenchSettings:
    return read_settings(parse("http://h", *flags))


async def answer(stream: trio.SocketStream) -> None:
    await send_head(stream)
    for data in (event(chat_chunk("a b")), event(chat_chunk("c")), event(usage_chunk(6, 3)) + DONE, b""):
        await send_piece(stream, data)


async def serve(request: bytes, stream: trio.SocketStream) -> None:
    if request.startswith(b"GET /v1/models"):
        await send_json(stream, MODELS)
    else:
        await answer(stream)


async def refuse(_request: bytes, stream: trio.SocketStream) -> None:
    body = b'{"error": {"message": "no such model", "code": "model_not_found"}}'
    await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def test_defaults_are_a_closed_loop_of_100_requests() -> None:
    actual = settings()

    assert (ClosedLoop(clients=8), Limits(requests=100, duration_s=None)) == (actual.pattern, actual.limits)
    assert {"max_tokens": 128, "temperature": 0.0} == actual.parameters


def test_rate_makes_an_open_loop() -> None:
    assert OpenLoop(rate_per_s=2.5) == settings("--rate", "2.5").pattern


def test_duration_lifts_the_default_number_of_requests() -> None:
    assert Limits(requests=None, duration_s=60.0) == settings("--duration", "60").limits
    assert Limits(requests=5, duration_s=60.0) == settings("--duration", "60", "--requests", "5").limits


def test_extra_body_wins() -> None:
    actual = settings("--ignore-eos", "--output-tokens", "7", "--extra-body", '{"top_k": 1, "max_tokens": null}')

    assert {"max_tokens": None, "temperature": 0.0, "ignore_eos": True, "top_k": 1} == actual.parameters


@pytest.mark.parametrize(("text", "expected"), [("64", WordRange(low=64, high=64)), ("20-50", WordRange(low=20, high=50))])
def test_word_ranges(text: str, expected: WordRange) -> None:
    assert expected == settings("--prompt-words", text).words


@pytest.mark.parametrize(
    "flags",
    [
        ("--concurrency", "0"),
        ("--rate", "0"),
        ("--rate", "inf"),
        ("--rate", "1", "--concurrency", "2"),
        ("--warmup", "-1"),
        ("--prompt-words", "9-3"),
        ("--prompt-words", "x"),
        ("--extra-body", "[]"),
        ("--extra-body", "{"),
        ("--json", "/no/such/folder/x.json"),
        ("--plot", "picture.xyz"),
        ("--endpoint", "embeddings"),
    ],
)
def test_wrong_flags_are_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings(*flags)
    assert 2 == caught.value.code
    assert "error: argument" in capsys.readouterr().err


def test_help_groups_flags_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")

    text = capsys.readouterr().out
    headings = ["\nserver:", "\nload:", "\nprompts and answers:", "\noutput:", "\nexamples:"]
    assert sorted(headings, key=text.index) == headings
    assert "bench http://127.0.0.1:8000 --rate 5" in text


@pytest.mark.parametrize("flags", [["--concurrency", "3"], ["--rate", "500"], ["--endpoint", "completions"]])
def test_smoke_over_a_real_socket(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    with http_server_in_thread(serve) as url:
        status = run_bench(parse(url, "--requests", "12", "--api-key", "secret", "--json", str(path), *flags))

    out, written = capsys.readouterr().out, path.read_text()
    summary: dict[str, Any] = json.loads(written)["summary"]
    assert 0 == status
    assert "12 completed, 0 failed, 0 aborted" in out
    assert (12, 36, 72) == (summary["completed"], summary["tokens"]["output"], summary["tokens"]["prompt"])
    assert 12 == summary["gap_between_chunks_s"]["count"]
    assert "tiny" == json.loads(written)["settings"]["model"]
    assert "secret" not in written


def test_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.png"
    with http_server_in_thread(serve) as url:
        assert 0 == run_bench(parse(url, "--requests", "3", "--plot", str(path)))

    assert path.exists()


def test_plot_without_matplotlib_is_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "run.png"
    with http_server_in_thread(serve) as url:
        assert 0 == run_bench(parse(url, "--requests", "3", "--plot", str(path)))

    assert "no plot: it needs matplotlib (pip install 'layered-llm[plot]')\n" == capsys.readouterr().err
    assert not path.exists()


def test_prompts_of_a_file_are_asked(tmp_path: Path) -> None:
    asked: list[str] = []

    async def note(request: bytes, stream: trio.SocketStream) -> None:
        asked.append(json.loads(request.partition(b"\r\n\r\n")[2])["messages"][0]["content"])
        await answer(stream)

    path = tmp_path / "p.txt"
    path.write_text("a\nb\n")
    with http_server_in_thread(note) as url:
        run_bench(parse(url, "--model", "m", "--prompts", str(path), "--requests", "3", "--concurrency", "1"))

    assert ["a", "b", "a", "b"] == asked


def test_failures_are_counted_and_set_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    count = 0

    async def fail_every_third(request: bytes, stream: trio.SocketStream) -> None:
        nonlocal count
        count += 1
        await (refuse if count % 3 == 0 else serve)(request, stream)

    with http_server_in_thread(fail_every_third) as url:
        status = run_bench(parse(url, "--requests", "9", "--model", "m", "--warmup", "0", "--concurrency", "1"))

    assert 1 == status
    assert "     3  HTTP 404  no such model" in capsys.readouterr().out


def test_failed_warm_up_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server_in_thread(refuse) as url:
        status = run_bench(parse(url, "--model", "m"))

    assert (2, "layered-llm bench: the warm-up request failed: HTTP 404: no such model\n") == (status, capsys.readouterr().err)


async def want_key(_request: bytes, stream: trio.SocketStream) -> None:
    body = b'{"error": {"message": "no key"}}'
    await stream.send_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


def test_a_server_that_wants_a_key_names_the_flag_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server_in_thread(want_key) as url:
        assert 2 == run_bench(parse(url))

    assert "layered-llm bench: HTTP 401: no key; --api-key KEY sends one\n" == capsys.readouterr().err


async def list_nothing(_request: bytes, stream: trio.SocketStream) -> None:
    await send_json(stream, {"data": []})


def test_server_without_models(capsys: pytest.CaptureFixture[str]) -> None:
    with http_server_in_thread(list_nothing) as url:
        assert 2 == run_bench(parse(url))

    assert "name one with --model" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["ftp://h", "http://127.0.0.1:1"])
def test_nothing_to_talk_to(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == run_bench(parse(url))
    assert capsys.readouterr().err.startswith("layered-llm bench: ")


def test_conversations_need_the_chat_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}')

    assert 2 == run_bench(parse("http://h", "--endpoint", "completions", "--prompts", str(path)))
    assert "--endpoint chat" in capsys.readouterr().err


def test_interrupt_reports_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    count = 0

    async def interrupt_at_the_fourth(_request: bytes, stream: trio.SocketStream) -> None:
        nonlocal count
        count += 1
        if count == 4:
            os.kill(os.getpid(), signal.SIGINT)
        if count >= 4:
            await stream.receive_some()
        else:
            await answer(stream)

    with http_server_in_thread(interrupt_at_the_fourth) as url:
        status = run_bench(parse(url, "--model", "m", "--concurrency", "1", "--warmup", "0", "--requests", "1000"))

    out = capsys.readouterr().out
    assert 130 == status
    assert "3 completed, 0 failed, 1 aborted" in out
    assert "interrupted" in out
