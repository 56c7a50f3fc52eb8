"""Which engines there are, and how each is started."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import attrs
from benchmarks.peers.model_files import FORMATS, HUGGING_FACE
from benchmarks.worker_process import ROOT

from layered_llm.service.model.checkpoint import default_gguf

TRANSFORMERS: Final = "transformers"
LLAMA: Final = "llama.cpp"
VLLM: Final = "vllm"
PEERS: Final = (TRANSFORMERS, LLAMA, VLLM)
OURS: Final = "ours"
ROOFLINE: Final = "limit"
ORIGINAL: Final = "Q4_1"
"""The precision of the default model's own file."""
VLLM_ENVIRONMENT: Final = MappingProxyType({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"})
MOST_CONTEXT_TOKENS: Final = 640
THREADS: Final = len(os.sched_getaffinity(0))


@attrs.frozen(kw_only=True)
class Places:
    """Where interpreters and weights are."""

    peers_python: Path
    vllm_python: Path
    models: Path

    def gguf(self, name: str) -> Path:
        return default_gguf() if name == ORIGINAL else self.models / f"{name}.gguf"

    @property
    def hugging_face(self) -> Path:
        return self.models / HUGGING_FACE


@attrs.frozen(kw_only=True)
class EngineCommand:
    """An engine by itself, in a process that `benchmarks.peers.protocol` serves."""

    name: str
    family: str
    command: Sequence[str]
    environment: Mapping[str, str]


@attrs.frozen(kw_only=True)
class ServerCommand:
    """An OpenAI-compatible server."""

    name: str
    family: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ready_path: str
    parameters: Mapping[str, object]
    """Of each request: so that an answer does not end before it is as long as asked."""


@attrs.frozen(kw_only=True)
class ModelShape:
    """What the limit of a step is computed from."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    intermediate: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        """Of the matrices of all layers."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def unread_weights(self) -> int:
        """Of the last layer: a token without logits needs nothing of it but its keys and values."""
        return self.layer_weights // self.layers - 2 * self.hidden * self.head_size * self.kv_heads

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def kv_items_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size


def make_model_files(places: Places) -> None:
    """Once; shows its progress. Exits when it fails: nothing can be compared then."""
    command = [str(places.peers_python), "-m", "benchmarks.peers.model_files", str(default_gguf()), str(places.models)]
    made = [places.hugging_face, *(places.gguf(name) for name in FORMATS)]
    if not all(path.exists() for path in made):
        subprocess.run(command, check=True, cwd=ROOT, env=peer_environment())


def model_shape(places: Places) -> ModelShape:
    config = json.loads((places.hugging_face / "config.json").read_text())
    return ModelShape(
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_size=config["hidden_size"] // config["num_attention_heads"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        vocabulary=config["vocab_size"],
    )


def engines(places: Places) -> list[EngineCommand]:
    peers, hugging_face = str(places.peers_python), str(places.hugging_face)
    commands = [
        _engine(ROOFLINE, OURS, sys.executable, "roofline_engine"),
        _engine(OURS, OURS, sys.executable, "own_engine"),
        _engine("transformers fp32", TRANSFORMERS, peers, "transformers_engine", hugging_face),
    ]
    commands += [
        _engine(f"llama.cpp {name}", LLAMA, peers, "llama_cpp_engine", str(places.gguf(name))) for name in (*FORMATS, ORIGINAL)
    ]
    in_process = {**VLLM_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    commands += [
        _engine(f"vLLM {name}", VLLM, str(places.vllm_python), "vllm_engine", hugging_face, dtype, more=in_process)
        for name, dtype in (("fp32", "float32"), ("bf16", "bfloat16"))
    ]
    return commands


def servers(places: Places) -> list[ServerCommand]:
    """Each command ends with the flag for the port."""
    return [
        ServerCommand(
            name=OURS,
            family=OURS,
            command=[sys.executable, "-m", "layered_llm", "--threads", str(THREADS), "--port"],
            environment=peer_environment(),
            ready_path="/health",
            parameters={"ignore_eos": True},
        ),
        ServerCommand(
            name="llama.cpp server Q4_1",
            family=LLAMA,
            command=[
                *(str(places.peers_python), "-m", "llama_cpp.server", "--model", str(places.gguf(ORIGINAL))),
                *("--n_threads", str(THREADS), "--n_threads_batch", str(THREADS), "--n_ctx", "2048"),
                # By default the newest request cuts off the one under way.
                *("--interrupt_requests", "false", "--port"),
            ],
            environment=peer_environment(),
            ready_path="/v1/models",
            parameters={"logit_bias": {"2": -100.0}},
        ),
        ServerCommand(
            name="vLLM server fp32",
            family=VLLM,
            command=[
                *(str(places.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(places.hugging_face)),
                *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--port"),
            ],
            environment=peer_environment(VLLM_ENVIRONMENT),
            ready_path="/health",
            parameters={"ignore_eos": True},
        ),
    ]


def is_installed(command: Sequence[str]) -> bool:
    """Whether there is such an interpreter; what it lacks shows when it is started."""
    return Path(command[0]).exists()


def _engine(
    name: str, family: str, python: str, module: str, *arguments: str, more: Mapping[str, str] = MappingProxyType({})
) -> EngineCommand:
    command = [python, "-m", f"benchmarks.peers.{module}", *arguments]
    return EngineCommand(name=name, family=family, command=command, environment=peer_environment(more))


def peer_environment(more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """This process's, with the modules of the benchmarks in reach and the cores that it may use."""
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "VLLM_CPU_OMP_THREADS_BIND": cores, **more}
