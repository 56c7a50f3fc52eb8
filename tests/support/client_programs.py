"""Programs of other people, in the environments that `make clients` makes for them, against servers of ours."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = ROOT / "tests" / "clients" / "programs"
ENVIRONMENTS: Final = Path(os.environ.get("CLIENTS_VENV", ROOT / ".venv-clients"))
HUB_NAME: Final = "local/default"
"""What the default checkpoint is called in the hub's cache that `hub_cache` makes."""


def program(environment: str, name: str) -> str:
    """The path of a command in one of the environments."""
    path = ENVIRONMENTS / environment / "bin" / name
    assert path.exists(), f"{path} is not there: run `make clients`"
    return str(path)


def run_program(command: Sequence[str], *, timeout_s: float, variables: Mapping[str, str] | None = None) -> str:
    """What the command wrote on standard output; fails with all that it wrote where it does not exit with 0."""
    offline = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "OPENAI_API_KEY": "none"}
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**inherited, **offline, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    assert 0 == done.returncode, done.stderr[-2000:]
    return done.stdout


def hub_cache(home: Path, checkpoint: Path) -> Mapping[str, str]:
    """Variables by which libraries of the hub find the checkpoint under `HUB_NAME`: not every one takes a directory."""
    repository = home / "hub" / f"models--{HUB_NAME.replace('/', '--')}"
    commit = "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(checkpoint)
    return {"HF_HOME": str(home)}
