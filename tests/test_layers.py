import ast
import importlib
import pkgutil
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

import layered_llm.domain.messages

ROOT: Final = Path(__file__).parent.parent
LINT_IMPORTS: Final = Path(sys.executable).with_name("lint-imports")
HEAVY: Final = frozenset({"asyncio", "jinja2", "quart", "tokenizers", "torch", "transformers", "triton", "trio", "zmq"})


def lint_imports(directory: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache"], cwd=directory, env={"PYTHONPATH": "src"}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources in a place where they can be spoiled."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_import_contract_holds() -> None:
    result = lint_imports(ROOT)

    assert 0 == result.returncode, result.stdout


@pytest.mark.parametrize(
    ("path", "line", "contract"),
    [
        ("domain/finish.py", "import zmq", "domain: the standard library and attrs"),
        ("domain/finish.py", "import time", "domain: the standard library and attrs"),
        ("text/tokenizer.py", "import torch", "text: no HTTP, ZMQ, tensors or event loops"),
        ("scheduling/pages.py", "from layered_llm.text import core", "service over text | scheduling | runtime | transport"),
        ("scheduling/pages.py", "import random", "scheduling: domain only"),
        ("runtime/device/slots.py", "import trio", "runtime: no HTTP, ZMQ, text or event loops"),
        ("transport/codec.py", "from layered_llm.service import settings", "service over text | scheduling | runtime"),
        ("transport/http/exchange/sse.py", "import zmq", "only transport.zmq_socket imports zmq"),
        ("service/server/serve.py", "import torch", "only runtime imports torch"),
        (
            "service/server/serve.py",
            "import layered_llm.transport.http.openai.schema.requests",
            "only the HTTP endpoints import",
        ),
        ("helpers/__init__.py", "", "service over text | scheduling | runtime | transport"),
    ],
)
def test_a_forbidden_import_is_found(path: str, line: str, contract: str, copy: Path) -> None:
    file = copy / "src" / "layered_llm" / path
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as source:
        source.write(f"\n{line}\n")
    result = lint_imports(copy)

    broken = [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]
    assert 0 != result.returncode
    assert contract in "\n".join(broken) or contract in result.stdout.partition("Broken contracts")[2]


def imported_by(module: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded behind `import module`."""
    program = f"import sys; import {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("layered_llm", HEAVY),
        ("layered_llm.domain.messages.api_text", HEAVY),
        ("layered_llm.scheduling.core", HEAVY | {"numpy", "msgspec"}),
        ("layered_llm.text.core", HEAVY - {"jinja2", "tokenizers", "asyncio"}),
        ("layered_llm.runtime.scripted.scripted_device", HEAVY),
        ("layered_llm.transport.links", HEAVY - {"trio", "zmq", "asyncio"}),
        ("layered_llm.transport.http.application", {"torch", "transformers", "tokenizers", "zmq"}),
        ("layered_llm.service.workers.scheduler", {"jinja2", "quart", "tokenizers", "torch", "transformers"}),
        ("layered_llm.service.workers.text", {"quart", "torch", "transformers"}),
        ("layered_llm.service.workers.runtime", {"jinja2", "quart", "tokenizers", "torch", "transformers"}),
        ("layered_llm.service.supervisor.supervisor_loop", {"jinja2", "quart", "tokenizers", "torch", "transformers"}),
        ("layered_llm.service.server.api", {"tokenizers", "torch", "transformers"}),
    ],
)
def test_a_process_does_not_load_what_it_must_not_know(module: str, absent: set[str]) -> None:
    assert set() == imported_by(module) & absent


def message_classes() -> Iterator[type]:
    """Every class that a module of the vocabulary of links defines."""
    for info in pkgutil.iter_modules(layered_llm.domain.messages.__path__, "layered_llm.domain.messages."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == info.name and not issubclass(value, str | int):
                yield value


def unsafe_parts(annotation: Any) -> list[Any]:
    """Parts of an annotation that say too little, or that whoever receives a message could change."""
    if typing.get_origin(annotation) is typing.Annotated:
        return unsafe_parts(typing.get_args(annotation)[0])
    if isinstance(annotation, typing.NewType):
        return unsafe_parts(annotation.__supertype__)
    here = typing.get_origin(annotation) or annotation
    unsafe = [annotation] if here in (Any, object, list, dict, set, bytearray) or isinstance(annotation, str) else []
    return unsafe + [part for argument in typing.get_args(annotation) if argument is not ... for part in unsafe_parts(argument)]


@pytest.mark.parametrize("message", list(message_classes()), ids=lambda message: message.__name__)
def test_a_message_is_a_frozen_value_of_frozen_values(message: type) -> None:
    assert attrs.has(message)
    hints = typing.get_type_hints(message)
    unsafe = {field.name: found for field in attrs.fields(message) if (found := unsafe_parts(hints[field.name]))}

    assert {} == unsafe
    blank: Any = message.__new__(message)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        blank.any_name = None


def test_the_check_of_messages_finds_what_it_is_for() -> None:
    assert [list[int]] == unsafe_parts(tuple[list[int], ...])
    assert [Any] == unsafe_parts(tuple[Any, ...])
    assert [] == unsafe_parts(tuple[tuple[str, int | None], ...])
    assert len(list(message_classes())) > 20


def imports_between_folders() -> dict[str, set[str]]:
    """For each folder of the package the other folders that its modules import from, as paths."""
    source = Path(layered_llm.__file__).parent
    folders: dict[str, set[str]] = {}
    for file in source.rglob("*.py"):
        here = str(file.parent.relative_to(source))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("layered_llm."):
                for name in node.names:
                    path = source.joinpath(*f"{node.module}.{name.name}".split(".")[1:])
                    module = path if path.with_suffix(".py").exists() or path.is_dir() else path.parent
                    there = module if module.is_dir() else module.parent
                    folders.setdefault(here, set()).add(str(there.relative_to(source)))
    return {folder: others - {folder} for folder, others in folders.items()}


def test_no_folder_imports_from_one_that_imports_from_it() -> None:
    tuple(TopologicalSorter(imports_between_folders()).static_order())  # raises CycleError


def test_a_circle_of_folders_is_seen() -> None:
    folders = imports_between_folders()
    folders["domain"] = {"service"}

    with pytest.raises(CycleError):
        tuple(TopologicalSorter(folders).static_order())
