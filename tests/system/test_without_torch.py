"""The default path where torch cannot be imported: no process of a server needs it, and its answers are the same."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.golden import golden
from support.server import Server, python_server

NO_TORCH = 'raise ImportError("there is no torch here")\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    shadow = tmp_path_factory.mktemp("shadow")
    (shadow / "torch.py").write_text(NO_TORCH)
    path = os.pathsep.join(filter(None, [str(shadow), os.environ.get("PYTHONPATH")]))
    with python_server({}, before=["env", f"PYTHONPATH={path}"]) as started:
        yield started


def test_greedy_tokens_are_those_of_transformers(server: Server) -> None:
    reference = golden("english")
    body = {**reference.prompt, "temperature": 0, "max_tokens": 64, "ignore_eos": reference.ignore_eos}
    answer = server.post("/v1/completions", {**body, "return_token_ids": True}).json()
    assert list(reference.output_ids) == answer["choices"][0]["token_ids"]


def test_sampling_penalties_and_log_probabilities_need_none(server: Server) -> None:
    body = {"prompt": "Once", "max_tokens": 4, "seed": 1, "presence_penalty": 1.0, "top_p": 0.9, "logprobs": 3, "echo": True}
    answer = server.post("/v1/completions", body)
    assert (200, 5) == (answer.status_code, len(answer.json()["choices"][0]["logprobs"]["tokens"]))


def test_no_process_has_mapped_it(server: Server) -> None:
    mapped = {process.pid: Path(f"/proc/{process.pid}/maps").read_text() for process in server.processes()}
    assert len(mapped) >= 4
    assert [] == [pid for pid, maps in mapped.items() if "libtorch" in maps]
