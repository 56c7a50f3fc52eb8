"""What clients that leave must not leave behind, in a real server: faults that other servers were reported for.

* A client leaves while its request waits, and the request is run later all the same (llama.cpp 13262): `queued`.
* ... during the prefill, and the server notices with its first token (ollama 11889, llama.cpp 9679): `prefill`.
* ... while it streams; the front end forgets the request first, and its abort finds nothing to send (sglang 36333): `decode`,
  `stream`.
* ... while it waits for a whole answer, for which frameworks cancel no handler (vllm 10806, waybarrios/vllm-mlx 457): `decode`,
  `whole`.
* Neither way of asking is ever cancelled, since the flag that is set is read by nobody (llama.cpp 24496, 11720).
* The other choices of a request go on, or its record stays (vllm 14512, 51629): `n2`, and one choice that had ended.
* All leave at once, and the gauges keep what they showed (vllm 22545, 29928).
* Aborted requests are not counted, or counted once all together (vllm 31503, sglang 31647).
* Who orders that a request is ended is told that it was, and its client waits for ever (sgl-project/sglang-jax 984).
* A request that was cancelled shortens the output of the next one (tenstorrent/tt-inference-server 3605):
  `check_nothing_is_left`.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import attrs
import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.eventually import eventually
from support.raw_client import DONE, Leaving, RawClient, raw_client
from support.server import Server, hypercorn_server, python_server, scripted

CHUNK_TOKENS: Final = 16
LONG_TOKENS: Final = 1600
"""A hundred chunks of prefill."""
SLOTS: Final = 2
ENDPOINTS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

USER: Final = {"role": "user", "content": "hello"}

Phase = Literal["queued", "prefill", "decode"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=4096)


NARROW: Final = {"max_running_requests": SLOTS, "chunked_prefill_size": CHUNK_TOKENS, "scripted_step_ms": 8}
"""A server that runs two choices at once, in small steps."""


@pytest.fixture(scope="module")
def narrow(model: Path) -> Iterator[Server]:
    with python_server(scripted(model, scripted_output="hash", **NARROW)) as server:
        yield server


@pytest.fixture(scope="module", params=[(), ("-w", "2")], ids=["hypercorn", "two-workers"])
def narrow_hypercorn(model: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The same behind `hypercorn layered_llm.app`, literally, and with two workers in front of one engine."""
    with hypercorn_server(scripted(model, scripted_output="hash", **NARROW), *request.param) as server:
        yield server


@pytest.fixture(scope="module")
def wide(model: Path) -> Iterator[Server]:
    with python_server(scripted(model, scripted_output="hash", scripted_step_ms=8, num_pages=8192)) as server:
        yield server


@attrs.frozen(kw_only=True)
class Case:
    phase: Phase
    endpoint: str
    stream: bool
    n: int
    leaving: Leaving

    def body(self) -> dict[str, object]:
        text = "x" * (LONG_TOKENS if self.phase == "prefill" else 8)
        prompt = {"prompt": text} if self.endpoint == "completions" else {"messages": [{"role": "user", "content": text}]}
        return {**prompt, "max_tokens": 2000, "temperature": 0, "n": self.n, "stream": self.stream}

    @property
    def name(self) -> str:
        how = "stream" if self.stream else "whole"
        return f"{self.phase}-{self.endpoint}-{how}-n{self.n}-{self.leaving}"


CASES: Final = [
    Case(phase=phase, endpoint=endpoint, stream=stream, n=n, leaving=leaving)
    for phase in ("queued", "prefill", "decode")
    for endpoint in ENDPOINTS
    for stream in (True, False)
    for n in (1, 2)
    for leaving in ("FIN", "RST")
]


CASES_OF_HYPERCORN: Final = [
    case
    for case in CASES
    if (case.endpoint == "chat") == (case.stream == (case.leaving == "FIN")) and (case.n == 2) == (case.leaving == "FIN")
]
"""A quarter of them: every phase and way of leaving, streaming and not, with either endpoint and count of choices."""


@attrs.define(eq=False)
class Watched:
    """A server, and what its counters stood at when the test began."""

    server: Server
    before: dict[str, float] = attrs.field(init=False)
    reference: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reference = self.greedy_text()
        self.server.wait_quiescent()
        self.before = self.server.metrics()

    def greedy_text(self) -> str:
        body = {"prompt": "what comes next", "max_tokens": 8, "temperature": 0}
        response = self.server.post("/v1/completions", body)
        assert 200 == response.status_code, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    def rise(self, name: str, labels: str = "") -> float:
        """By how much a metric, summed over labels unless some are given, is higher now."""
        now = self.server.metrics()
        return _total(now, name, labels) - _total(self.before, name, labels)

    def await_rise(self, name: str, least: float = 1) -> None:
        eventually(lambda: self.rise(name) >= least)

    def await_phase(self, phase: Phase, choices: int) -> None:
        """Waits until the request that was sent last is in this phase."""
        match phase:
            case "queued":
                eventually(lambda: self.server.state()["scheduler"]["waiting"] == choices)
            case "prefill":
                self.await_rise("prompt_tokens_computed_total", 2 * CHUNK_TOKENS)
            case "decode":
                self.await_rise("generation_tokens_computed_total", 2 * choices)

    def check_nothing_is_left(self, *, aborts: int) -> None:
        """Every page is back, every abort is counted once, and the next request is answered as ever, to its last token."""
        state = self.server.wait_quiescent()
        assert 0 == state["scheduler"]["pages_used"]
        assert [] == state["violations"]
        assert aborts == self.rise("aborts_emitted_total")
        assert aborts == self.rise("aborts_handled_total") + self.rise("aborts_late_total")
        assert self.reference == self.greedy_text()
        self.server.wait_quiescent()


def _total(samples: dict[str, float], name: str, labels: str) -> float:
    wanted = f"layered_llm_{name}{labels}"
    return sum(value for sample, value in samples.items() if sample == wanted or sample.partition("{")[0] == wanted)


def occupy_all_slots(client: RawClient) -> None:
    client.post("/v1/completions", {"prompt": "busy", "max_tokens": 3000, "n": SLOTS, "stream": True})
    client.read_until(b'"text"', count=SLOTS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_client_that_leaves_takes_its_request_along(case: Case, narrow: Server) -> None:
    check_leaving(case, narrow)


@pytest.mark.parametrize("case", CASES_OF_HYPERCORN, ids=lambda case: case.name)
def test_the_same_behind_hypercorn_as_typed(case: Case, narrow_hypercorn: Server) -> None:
    check_leaving(case, narrow_hypercorn)


def check_leaving(case: Case, server: Server) -> None:
    watched = Watched(server)
    with ExitStack() as clients:
        blockers = 0
        if case.phase == "queued":
            occupy_all_slots(clients.enter_context(raw_client(server.port)))
            blockers = 1
        client = clients.enter_context(raw_client(server.port))
        client.post(ENDPOINTS[case.endpoint], case.body())
        watched.await_phase(case.phase, case.n)
        client.leave(case.leaving)
        watched.await_rise("aborts_emitted_total")
        if case.phase == "queued":
            eventually(lambda: server.state()["scheduler"]["waiting"] == 0)
            assert SLOTS == server.state()["scheduler"]["running"]
            assert SLOTS * len("busy") == watched.rise("prompt_tokens_computed_total")
    eventually(lambda: watched.rise("aborts_emitted_total") == 1 + blockers)
    if case.phase == "prefill":
        server.wait_quiescent()
        assert watched.rise("prompt_tokens_computed_total") < LONG_TOKENS
        assert 0 == watched.rise("generation_tokens_total")

    watched.check_nothing_is_left(aborts=1 + blockers)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
def test_the_client_of_a_request_that_the_operator_ends_is_told_so_at_once(phase: Phase, stream: bool, narrow: Server) -> None:
    watched = Watched(narrow)
    case = Case(phase=phase, endpoint="completions", stream=stream, n=1, leaving="FIN")
    with ExitStack() as clients:
        if phase == "queued":
            occupy_all_slots(clients.enter_context(raw_client(narrow.port)))
        client = clients.enter_context(raw_client(narrow.port))
        client.post(ENDPOINTS[case.endpoint], {**case.body(), "request_id": "mine"})
        watched.await_phase(phase, case.n)

        order = narrow.post("/abort_request", {"rid": "mine"})
        client.read_until(DONE if stream else b'"code":"aborted"')

        assert (200, {"aborted": 1}) == (order.status_code, order.json())
        assert b'"code":"aborted"' in client.received
        assert 1 == watched.rise("aborts_emitted_total", '{reason="administrative"}')
    blockers = phase == "queued"
    eventually(lambda: watched.rise("aborts_emitted_total") == 1 + blockers)

    watched.check_nothing_is_left(aborts=1 + blockers)


@pytest.mark.parametrize("leaving", ["FIN", "RST"])
def test_gauges_fall_to_zero_without_new_traffic_when_all_leave_at_once(leaving: Leaving, wide: Server) -> None:
    watched = Watched(wide)
    with ExitStack() as stack:
        clients = [stack.enter_context(raw_client(wide.port)) for _ in range(20)]
        for client in clients:
            client.post("/v1/completions", {"prompt": "abc", "max_tokens": 3000, "stream": True})
        for client in clients:
            client.read_until(b'"text"', count=2)
        assert 20 == wide.metrics()["layered_llm_requests_running"]
        for client in clients:
            client.leave(leaving)
        gauges = [f"layered_llm_{name}" for name in ("requests_running", "requests_waiting", "kv_pages_used")]
        eventually(lambda: not any(wide.metrics()[name] for name in gauges))
    watched.check_nothing_is_left(aborts=20)


def test_each_choice_is_counted_once_under_its_end(wide: Server) -> None:
    watched = Watched(wide)
    with ExitStack() as stack:
        clients = [stack.enter_context(raw_client(wide.port)) for _ in range(5)]
        for client in clients:
            client.post("/v1/completions", {"prompt": "abc", "max_tokens": 2000, "stream": True})
            client.read_until(b'"text"', count=2)
        for client in clients:
            client.leave("RST")
        for _ in range(5):
            assert 200 == wide.post("/v1/completions", {"prompt": "abc", "max_tokens": 3}).status_code
    wide.wait_quiescent()

    assert 10 == watched.rise("requests_accepted_total")
    assert 5 == watched.rise("choices_finished_total", '{reason="length"}')
    assert 5 == watched.rise("choices_finished_total", '{reason="abort"}')
    assert 10 == watched.rise("choices_finished_total")


def test_a_choice_that_ended_does_not_keep_its_twins_from_being_aborted(wide: Server) -> None:
    watched = Watched(wide)
    with raw_client(wide.port) as client:
        body = {"prompt": "abc", "max_tokens": 2000, "n": 4, "stream": True, "seed": 1, "stop": ["q"]}
        client.post("/v1/completions", body)
        client.read_until(b'"finish_reason":"stop"')
        client.leave("RST")
        watched.await_rise("aborts_emitted_total")

    watched.check_nothing_is_left(aborts=1)


def test_a_client_that_leaves_behind_its_body_is_aborted_though_it_reads_nothing(wide: Server) -> None:
    watched = Watched(wide)
    for stream in (True, False):
        for path, prompt in (("/v1/completions", {"prompt": "ab"}), ("/v1/chat/completions", {"messages": [USER]})):
            with raw_client(wide.port) as client:
                client.post(path, {**prompt, "max_tokens": 2000, "stream": stream})
                client.leave("FIN")
                client.read_to_end()
    wide.wait_quiescent()

    assert 0 == watched.rise("choices_finished_total", '{reason="length"}')
    watched.check_nothing_is_left(aborts=int(watched.rise("aborts_emitted_total")))


def test_neighbours_of_aborted_requests_say_what_they_say_alone(wide: Server) -> None:
    watched = Watched(wide)
    with ExitStack() as stack:
        leaving = [stack.enter_context(raw_client(wide.port)) for _ in range(6)]
        for client in leaving:
            client.post("/v1/completions", {"prompt": "noise", "max_tokens": 2000, "stream": True})
        with ThreadPoolExecutor(4) as pool:
            texts = [pool.submit(watched.greedy_text) for _ in range(12)]
            for client in leaving:
                client.read_until(b'"text"')
                client.leave("RST")
            assert {watched.reference} == {text.result() for text in texts}
    eventually(lambda: watched.rise("aborts_emitted_total") == 6)

    watched.check_nothing_is_left(aborts=6)


def test_a_request_that_ended_emits_no_abort_when_its_connection_closes(wide: Server) -> None:
    watched = Watched(wide)
    with raw_client(wide.port) as client:
        client.post("/v1/completions", {"prompt": "abc", "max_tokens": 4, "stream": True})
        client.read_until(b"data: [DONE]")
        client.leave("RST")

    watched.check_nothing_is_left(aborts=0)
