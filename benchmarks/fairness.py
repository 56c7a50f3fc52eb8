"""What a flood of one API key costs the others: the time to the first token of a small chat, beside floods of each kind."""

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
from benchmarks.json_file import write_json
from benchmarks.machine import this_machine
from benchmarks.server_process import local_server

HELP = """\
Starts the server with its default model and two API keys. One key floods it from a process of the lowest priority:
connections that each send the same body again as soon as it was answered. The other asks for small streamed chats, one after
the other, before each flood and during it.

Read it so:
  alone           time to the first token without a flood, the median of this kind's requests
  flooded         the same during the flood: the median, and the worst
  ratio, later    the medians' ratio and difference; one of 3 times and 300 ms is kept to
  answers         bodies of the flood that were answered meanwhile, with the statuses that they got
"""
FLOODER, OTHER = "flooder-key-0123456789", "other-key-0123456789"
LONG_TEXT: Final = "The sea was calm that day. " * 11_200
"""300,000 characters."""
FITTING_TEXT: Final = "The sea was calm that day. " * 60
HUGE_TEXT: Final = "The sea was calm that day. " * 580_000
"""15 MB."""
IDS: Final = [token % 40_000 + 100 for token in range(100_000)]
COMPUTED: Final = "fitting prompts"
"""The one kind that the model computes: what it costs is up to the scheduler's steps and the machine; measured where it is
asked for."""
FLOODS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "completions": ("/v1/completions", {"prompt": LONG_TEXT, "max_tokens": 1}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG_TEXT}], "max_tokens": 1}),
    "many messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "calm"}] * 5000, "max_tokens": 1}),
    "tokenize": ("/tokenize", {"prompt": LONG_TEXT}),
    "detokenize": ("/detokenize", {"tokens": IDS}),
    "generate": ("/generate", {"text": LONG_TEXT, "sampling_params": {"max_new_tokens": 1}}),
    "token ids": ("/v1/completions", {"prompt": IDS, "max_tokens": 1}),
    "large bodies": ("/v1/completions", {"prompt": HUGE_TEXT, "max_tokens": 1}),
    COMPUTED: ("/v1/completions", {"prompt": FITTING_TEXT, "max_tokens": 1}),
}
PROBE: Final = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2, "temperature": 0, "stream": True}
MOST_RATIO, MOST_LATER_MS = 3.0, 300.0
TIMEOUT_S = 60.0
LONGEST_FLOOD_S = 60.0
BETWEEN_PROBES_S = 0.05


@attrs.frozen(kw_only=True)
class Row:
    """One kind of flood; times in ms."""

    flood: str
    alone_ms: float
    flooded_ms: float
    worst_ms: float
    answers: int
    statuses: Mapping[str, int]

    @property
    def ratio(self) -> float:
        return self.flooded_ms / self.alone_ms

    @property
    def later_ms(self) -> float:
        return self.flooded_ms - self.alone_ms

    @property
    def is_fair(self) -> bool:
        return self.ratio <= MOST_RATIO or self.later_ms <= MOST_LATER_MS


def main() -> None:
    arguments = parse()
    if arguments.flood is not None:
        flood(arguments.flood, arguments.url, arguments.connections)
        return
    machine = this_machine()
    with server_url(arguments.url) as url:
        first_token_ms(url)
        rows = [measure(kind, url, arguments) for kind in arguments.kinds]
    print(f"{arguments.connections} connections flood, {arguments.probes} requests beside them; {machine}\n\n{table(rows)}")
    if arguments.json is not None:
        settings = {name: getattr(arguments, name) for name in ("kinds", "connections", "probes")}
        report = [{**attrs.asdict(row), "is_fair": row.is_fair} for row in rows]
        write_json({"machine": attrs.asdict(machine), "settings": settings, "table": report}, arguments.json)
    raise SystemExit(not all(row.is_fair for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fairness", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ", ".join(FLOODS)
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=FLOODS,
        default=[kind for kind in FLOODS if kind != COMPUTED],
        metavar="KIND",
        help=f"of: {kinds} (default: all but the last)",
    )
    parser.add_argument("--connections", type=int, default=16, metavar="N", help="of the flood (default: 16)")
    parser.add_argument("--probes", type=int, default=20, metavar="N", help="small chats of the other key (default: 20)")
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"a server that runs already, with --api-key {FLOODER} {OTHER} (default: start one)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings and table to FILE")
    parser.add_argument("--flood", choices=FLOODS, help=argparse.SUPPRESS)
    return parser.parse_args()


@contextlib.contextmanager
def server_url(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    sys.stderr.write("starting the server\n")
    with local_server("--api-key", FLOODER, OTHER) as server:
        sys.stderr.write(f"ready after {server.start_s:.1f} s\n")
        yield server.url


def measure(kind: str, url: str, arguments: argparse.Namespace) -> Row:
    alone = [first_token_ms(url) for _ in range(arguments.probes)]
    with flooding(kind, url, arguments.connections) as flooder:
        flooded = [first_token_ms(url) for _ in range(arguments.probes)]
        assert flooder.stdin is not None
        assert flooder.stdout is not None
        flooder.stdin.close()
        statuses = json.loads(flooder.stdout.read())
    row = Row(
        flood=kind,
        alone_ms=statistics.median(alone),
        flooded_ms=statistics.median(flooded),
        worst_ms=max(flooded),
        answers=sum(statuses.values()),
        statuses=statuses,
    )
    sys.stderr.write(f"{kind}: {row.alone_ms:.0f} ms alone, {row.flooded_ms:.0f} ms flooded\n")
    return row


@contextlib.contextmanager
def flooding(kind: str, url: str, connections: int) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that floods until its standard input ends, and then writes how many answers of each status it got."""
    command = [sys.executable, "-m", "benchmarks.fairness", "--flood", kind, "--url", url, "--connections", str(connections)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def flood(kind: str, url: str, connections: int) -> None:
    os.nice(19)
    path, body = FLOODS[kind]
    data, statuses, is_over, has_begun = json.dumps(body).encode(), dict[str, int](), threading.Event(), threading.Event()
    give_up_s = time.monotonic() + LONGEST_FLOOD_S

    def send() -> None:
        while not is_over.is_set() and time.monotonic() < give_up_s:
            try:
                with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)) as connection:
                    while not is_over.is_set() and time.monotonic() < give_up_s:
                        outcome = _post(connection, path, data, FLOODER)
                        statuses[outcome] = statuses.get(outcome, 0) + 1
                        has_begun.set()
            except (OSError, http.client.HTTPException) as error:
                # A body that is refused early is answered and cut while it is sent.
                statuses[type(error).__name__] = statuses.get(type(error).__name__, 0) + 1
                has_begun.set()

    for _ in range(connections):
        threading.Thread(target=send, daemon=True).start()
    has_begun.wait(TIMEOUT_S)
    print(flush=True)
    sys.stdin.read()
    is_over.set()
    print(json.dumps(statuses), flush=True)
    os._exit(0)


def _post(connection: http.client.HTTPConnection, path: str, data: bytes, key: str) -> str:
    connection.request("POST", path, data, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    return str(response.status)


def first_token_ms(url: str) -> float:
    """Of a new connection; exits when the request is refused."""
    time.sleep(BETWEEN_PROBES_S)
    began_s = time.perf_counter()
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)) as connection:
        headers = {"Authorization": f"Bearer {OTHER}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(PROBE).encode(), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise SystemExit(f"a small chat was answered with {response.status}: {response.read().decode()}")
        while line := response.readline():
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                took_ms = 1000 * (time.perf_counter() - began_s)
                response.read()
                return took_ms
    raise SystemExit("a small chat ended without a token")


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'flood':<18}{'alone':>8}{'flooded':>10}{'worst':>9}{'ratio':>8}{'later':>9}{'answers':>10}",
        f"{'':<18}{'ms':>8}{'ms':>10}{'ms':>9}{'':>8}{'ms':>9}",
    ]
    for row in rows:
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(row.statuses.items()))
        lines.append(
            f"{row.flood:<18}{row.alone_ms:>8.0f}{row.flooded_ms:>10.0f}{row.worst_ms:>9.0f}{row.ratio:>8.2f}"
            f"{row.later_ms:>9.0f}{row.answers:>10}  {statuses}{'' if row.is_fair else '  UNFAIR'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
