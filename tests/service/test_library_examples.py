from pathlib import Path
from typing import Final

import pytest

from support.byte_checkpoint import write_byte_checkpoint
from support.markdown import REPOSITORY, Example, examples

DOCUMENT: Final = REPOSITORY / "docs" / "library.md"


@pytest.mark.parametrize("example", examples(DOCUMENT), ids=lambda example: example.name)
def test_the_examples_of_the_library_run(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYERED_LLM_MODEL", str(write_byte_checkpoint(tmp_path)))
    monkeypatch.setenv("LAYERED_LLM_DEVICE", "scripted")
    exec(compile(example.block.text, str(DOCUMENT), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
