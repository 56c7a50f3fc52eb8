from collections.abc import Iterator

import pytest

from support.golden import default_checkpoint
from support.server import Server, python_server

MODEL = "SmolLM2-135M-Instruct"
ECHO = {"device": "scripted", "model": None, "served_model_name": MODEL, "metrics_prefix": "vllm"}


@pytest.fixture(scope="session")
def echo_server() -> Iterator[Server]:
    """It has the default model's tokenizer and template, and says its prompt again."""
    settings = {**ECHO, "model": default_checkpoint()}
    with python_server(settings) as server:
        yield server


@pytest.fixture(scope="session")
def api(echo_server: Server) -> tuple[str, str]:
    """The base URL and the model's name, as every program takes them."""
    return f"{echo_server.base_url}/v1", MODEL
