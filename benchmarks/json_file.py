"""A file of figures that is complete at any time, though it be written again and again."""

import json
from pathlib import Path
from typing import Any


def write_json(figures: Any, path: Path) -> None:
    """In place of what was there."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)
