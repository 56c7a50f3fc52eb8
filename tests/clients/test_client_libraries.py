import shutil

import pytest

from support.client_programs import ENVIRONMENTS, PROGRAMS, program, run_program
from support.server import Server

pytestmark = pytest.mark.clients


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ("clients", "langchain_calls.py"),
        ("clients", "litellm_calls.py"),
        ("clients", "openai_calls.py"),
        ("clients", "pydantic_ai_calls.py"),
        ("instructor", "instructor_calls.py"),
    ],
)
def test_python_libraries(environment: str, name: str, api: tuple[str, str], echo_server: Server) -> None:
    run_program([program(environment, "python"), str(PROGRAMS / name), *api], timeout_s=120)

    echo_server.wait_quiescent()


def test_the_llm_command_line(api: tuple[str, str]) -> None:
    run_program(["sh", str(PROGRAMS / "llm_calls.sh"), program("clients", "llm"), *api], timeout_s=120)


def test_openai_node(api: tuple[str, str], echo_server: Server) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on this machine: openai-node is not tested")
    directory = ENVIRONMENTS / "node"
    shutil.copy(PROGRAMS / "openai_node_calls.mjs", directory)
    run_program([node, str(directory / "openai_node_calls.mjs"), *api], timeout_s=60)

    echo_server.wait_quiescent()
