import json
import subprocess
import sys
from typing import Final

import pytest

import layered_llm

HEAVY: Final = {"attrs", "hypercorn", "numpy", "quart", "quart_trio", "tokenizers", "torch", "trio", "zmq"}


def modules_after(program: str) -> set[str]:
    text = f"{program}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert set() == modules_after("import layered_llm") & HEAVY


def test_the_library_needs_neither_torch_nor_a_web_framework() -> None:
    assert set() == modules_after("from layered_llm import LLM, open_engine") & {"torch", "quart", "quart_trio", "hypercorn"}


def test_every_name_is_there_and_shown() -> None:
    assert set(layered_llm.__all__) <= set(dir(layered_llm))
    assert [] == [name for name in layered_llm.__all__ if getattr(layered_llm, name, None) is None]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = layered_llm.nothing  # type: ignore[attr-defined] # that is what is tested
