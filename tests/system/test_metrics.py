import json
from collections.abc import Iterator, Mapping

import httpx
import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.exposition import Family, read_exposition
from support.server import SERVED_NAME, Server, python_server, scripted

DASHBOARD = {
    "vllm:cache_config_info": "gauge",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:generation_tokens_total": "counter",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_preemptions_total": "counter",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prompt_tokens_total": "counter",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_max_num_generation_tokens": "histogram",
    "vllm:request_num_preemptions": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_success_total": "counter",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:time_to_first_token_seconds": "histogram",
}
"""What vLLM's own Grafana dashboard queries, in its present and its former names."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_byte_checkpoint(tmp_path_factory.mktemp("model"), context_tokens=512)
    with python_server(scripted(model, metrics_prefix="vllm", scripted_step_ms=5)) as started:
        yield started


@pytest.fixture(scope="module")
def exposition(server: Server) -> Mapping[str, Family]:
    """After one request of each way to end, two choices of the last."""
    body = {"prompt": "ab c de", "temperature": 0}
    server.post("/v1/completions", {**body, "max_tokens": 4})
    server.post("/v1/completions", {**body, "max_tokens": 50, "stop": "c d"})
    with server.client() as client:
        leave(client, server, {**body, "max_tokens": 400, "stream": True})
        leave(client, server, {**body, "max_tokens": 400, "stream": True, "n": 2}, is_aborted_by_id=True)
    server.wait_quiescent()
    return read_exposition(server.get("/metrics").text)


def leave(client: httpx.Client, server: Server, body: dict[str, object], *, is_aborted_by_id: bool = False) -> None:
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        public = json.loads(next(lines).removeprefix("data: "))["id"]
        if is_aborted_by_id:
            assert {"aborted": 1} == server.post("/abort_request", {"rid": public}).json()
            assert "data: [DONE]" in list(lines)


def test_all_that_vllms_dashboard_asks_for_is_there_in_its_kind(exposition: Mapping[str, Family]) -> None:
    assert DASHBOARD == {name: exposition[name].kind for name in DASHBOARD}


def test_samples_have_vllms_labels(exposition: Mapping[str, Family]) -> None:
    for name in DASHBOARD:
        for _, labels in exposition[name].samples:
            assert (("model_name", SERVED_NAME), ("engine", "0")) == labels[:2], name


def test_each_ended_choice_is_counted_once_by_its_reason(exposition: Mapping[str, Family]) -> None:
    reasons = ("stop", "length", "abort", "error")
    found = exposition["vllm:request_success_total"]

    assert [1, 1, 3, 0] == [found.value(finished_reason=reason) for reason in reasons]
    assert 5 == found.value()


def test_each_abort_is_counted_once_by_its_reason(exposition: Mapping[str, Family]) -> None:
    emitted = exposition["layered_llm_aborts_emitted_total"]

    assert [1, 1] == [emitted.value(reason=reason) for reason in ("client_gone", "administrative")]
    assert 2 == emitted.value()


def test_figures_under_both_names_are_the_same(exposition: Mapping[str, Family]) -> None:
    pairs = {
        "vllm:num_preemptions_total": "layered_llm_preemptions_total",
        "vllm:prompt_tokens_total": "layered_llm_prompt_tokens_total",
        "vllm:prefix_cache_queries_total": "layered_llm_prefix_cache_lookup_tokens_total",
    }

    for theirs, ours in pairs.items():
        assert exposition[ours].value() == exposition[theirs].value(), theirs


def test_requests_that_ended_by_themselves_are_in_every_histogram(exposition: Mapping[str, Family]) -> None:
    names = [
        "vllm:e2e_request_latency_seconds", "vllm:request_decode_time_seconds", "vllm:request_generation_tokens",
        "vllm:request_max_num_generation_tokens", "vllm:request_params_max_tokens", "vllm:request_params_n",
        "vllm:request_prompt_tokens", "vllm:request_time_per_output_token_seconds",
    ]  # fmt: skip

    assert {2.0} == {exposition[name].value("_count") for name in names}
    assert 14 == exposition["vllm:request_prompt_tokens"].value("_sum")
    assert 54 == exposition["vllm:request_params_max_tokens"].value("_sum")
    for name in ("time_to_first_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"):
        assert 4 == exposition[f"vllm:{name}"].value("_count"), name


def test_requests_that_ended_by_themselves_are_in_the_schedulers_histograms(exposition: Mapping[str, Family]) -> None:
    assert {2.0} == {
        exposition[f"vllm:request_{name}"].value("_count") for name in ("inference_time_seconds", "num_preemptions")
    }


def test_the_cache_is_described_by_labels(exposition: Mapping[str, Family]) -> None:
    ((_, labels),) = exposition["vllm:cache_config_info"].samples
    facts = dict(labels)

    assert ("16", "float32", "True") == (facts["block_size"], facts["cache_dtype"], facts["enable_prefix_caching"])
    assert int(facts["num_gpu_blocks"]) > 0


def test_an_idle_server_uses_nothing(exposition: Mapping[str, Family], server: Server) -> None:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")

    assert [0, 0, 0] == [exposition[f"vllm:{name}"].value() for name in names]
