import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.client_programs import HUB_NAME, hub_cache, program, run_program
from support.golden import default_checkpoint
from support.hugging_face import write_hugging_face
from support.server import Server, python_server, scripted

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]

MODEL = "SmolLM2-135M-Instruct"
TASK = "tiny_choices"
REQUESTS = 6
SCHEMA_CASES = 5_000


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model as a Hugging Face directory with weights in float32."""
    return write_hugging_face(default_checkpoint(), tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Mapping[str, str]:
    return hub_cache(tmp_path_factory.mktemp("hub"), checkpoint)


@pytest.fixture(scope="module")
def lenient_server() -> Iterator[Server]:
    """Any model's name and short answers, so that generated bodies come as far as they can."""
    settings = scripted(default_checkpoint(), any_model_name=True, served_model_name=MODEL, max_seq_len_override=256)
    with python_server(settings) as server:
        yield server


def answers(directory: Path) -> list[list[tuple[float, bool]]]:
    """Log likelihood and greediness of each choice, by question."""
    (file,) = directory.rglob("samples_*.jsonl")
    found = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return [[(float(first[0]), first[1] in (True, "True")) for first, *_ in sample["resps"]] for sample in found]


def accuracies(directory: Path) -> Any:
    (file,) = directory.rglob("results_*.json")
    return json.loads(file.read_text())["results"][TASK]


def lm_eval(directory: Path, model: str, arguments: str, hub: Mapping[str, str]) -> None:
    command = [
        program("tools", "lm_eval"),
        "--model",
        model,
        "--model_args",
        arguments,
        "--include_path",
        "tests/clients/tasks",
    ]
    more = ["--tasks", TASK, "--device", "cpu", "--log_samples", "--output_path", str(directory)]
    run_program([*command, *more], timeout_s=600, variables=hub)


def test_lm_eval_finds_the_likelihoods_of_its_own_hugging_face_backend(
    tmp_path: Path, hub: Mapping[str, str], checkpoint: Path
) -> None:
    with python_server({"model": default_checkpoint(), "served_model_name": MODEL, "dtype": "float32"}) as server:
        url = f"{server.base_url}/v1/completions"
        arguments = (
            f"model={MODEL},base_url={url},tokenizer={checkpoint},num_concurrent=4,tokenized_requests=True,max_length=512"
        )
        lm_eval(tmp_path / "served", "local-completions", arguments, hub)
    lm_eval(tmp_path / "own", "hf", f"pretrained={checkpoint},dtype=float32,max_length=512", hub)

    served, own = answers(tmp_path / "served"), answers(tmp_path / "own")
    assert [len(question) for question in own] == [len(question) for question in served]
    for ours, theirs in zip(served, own, strict=True):
        assert pytest.approx([likelihood for likelihood, _ in theirs], abs=2e-4) == [likelihood for likelihood, _ in ours]
        assert [is_greedy for _, is_greedy in theirs] == [is_greedy for _, is_greedy in ours]
    for metric in ("acc,none", "acc_norm,none"):
        assert accuracies(tmp_path / "own")[metric] == accuracies(tmp_path / "served")[metric]


def test_guidellm_completes_a_run(tmp_path: Path, hub: Mapping[str, str], checkpoint: Path, echo_server: Server) -> None:
    report = tmp_path / "report.json"
    options = {
        "--backend": f"kind=openai_http,target={echo_server.base_url},model={MODEL}",
        "--data": "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
        "--tokenizer": f"kind=huggingface_auto,model={checkpoint}",
        "--profile": "kind=concurrent,streams=2",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--output": f"kind=json,path={report}",
    }

    run_program([program("tools", "guidellm"), "run", *words(options)], timeout_s=300, variables=hub)

    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (REQUESTS, 0) == (totals["successful"], totals["errored"])


def test_aiperf_completes_a_run_and_finds_the_servers_metrics(
    tmp_path: Path, hub: Mapping[str, str], echo_server: Server
) -> None:
    options = {
        "--model": MODEL,
        "--url": echo_server.base_url,
        "--endpoint-type": "chat",
        "--tokenizer": HUB_NAME,
        "--synthetic-input-tokens-mean": "32",
        "--output-tokens-mean": "8",
        "--extra-inputs": "ignore_eos:true",
        "--request-count": str(REQUESTS),
        "--concurrency": "2",
        "--ui": "none",
        "--output-artifact-dir": str(tmp_path),
    }

    run_program([program("aiperf", "aiperf"), "profile", "--streaming", *words(options)], timeout_s=300, variables=hub)

    profile = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert (REQUESTS, []) == (profile["request_count"]["avg"], profile["error_summary"])
    scraped = json.loads((tmp_path / "server_metrics_export.json").read_text())
    assert [f"{echo_server.base_url}/metrics"] == scraped["summary"]["endpoints_successful"]
    assert {"vllm:time_to_first_token_seconds", "vllm:generation_tokens", "vllm:kv_cache_usage_perc"} <= scraped[
        "metrics"
    ].keys()


def test_no_generated_request_breaks_the_server_or_its_schema(lenient_server: Server) -> None:
    reference = {"model": MODEL, "prompt": "one two three", "max_tokens": 6, "temperature": 0}
    options = {
        "--phases": "examples,coverage,fuzzing",
        "--max-examples": "60",
        "--checks": "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
        "negative_data_rejection",
        "--request-timeout": "60",
    }
    command = [
        program("tools", "st"),
        "run",
        f"{lenient_server.base_url}/openapi.json",
        "--generation-deterministic",
        "--no-color",
    ]

    said = run_program([*command, *words(options)], timeout_s=1000)

    (found,) = re.findall(r"Test cases:\s+(\d+) generated, (\d+) passed", said)
    assert found[0] == found[1]
    assert int(found[0]) >= SCHEMA_CASES
    lenient_server.wait_quiescent()
    assert "one two threeone two three" == lenient_server.post("/v1/completions", reference).json()["choices"][0]["text"]


def words(options: Mapping[str, str]) -> list[str]:
    return [word for option in options.items() for word in option]
