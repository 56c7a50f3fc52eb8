import re
from pathlib import Path
from typing import Final

import pytest

from support.byte_checkpoint import write_byte_checkpoint

README: Final = Path(__file__).parents[2] / "README.md"


def examples() -> list[str]:
    section = re.search(r"^## As a library\n(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^```python\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", examples())
def test_the_examples_of_the_readme_run(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAYERED_LLM_MODEL", str(write_byte_checkpoint(tmp_path)))
    monkeypatch.setenv("LAYERED_LLM_DEVICE", "scripted")
    exec(compile(example, str(README), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
