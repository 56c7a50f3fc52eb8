"""Fetches a checkpoint from a model hub, where there is a network, into the hub library's own cache.

Must not know: what is done with the checkpoint.

`python -m layered_llm.service.model.hub MODEL` does it in a process of its own (see `fetching.py`), with the hub library's
progress bars on standard error, and says on standard output where the checkpoint lies, or why there is none.
"""

import os
import sys
from pathlib import Path
from typing import Final

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from layered_llm.service.processes.processes import exit_at_stdin_eof

EXIT_NO_CHECKPOINT: Final = 1
_FILES: Final = ("*.json", "*.jinja", "*.safetensors")


class HubError(Exception):
    """The hub does not give the checkpoint; one line that says why."""


def fetch(model: str) -> Path:
    """The directory of a hub id's files, with a progress bar for those that are not in the cache. Raises HubError."""
    try:
        return Path(snapshot_download(model, allow_patterns=list(_FILES)))
    except (GatedRepoError, RepositoryNotFoundError) as error:
        raise HubError("the hub has no such model, or it is gated and needs a token (HF_TOKEN)") from error
    except LocalEntryNotFoundError as error:
        raise HubError(
            "it is in no local cache, and the hub cannot be reached: name a directory, or try with a network"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise HubError(str(error).partition("\n")[0]) from error


def main() -> int:
    """The process's entry."""
    exit_at_stdin_eof(EXIT_NO_CHECKPOINT)
    (model,) = sys.argv[1:]
    try:
        said, code = str(fetch(model)), 0
    except HubError as error:
        said, code = str(error), EXIT_NO_CHECKPOINT
    sys.stdout.buffer.write(os.fsencode(said))  # as it is: whoever reads it decides what can be named
    return code


if __name__ == "__main__":
    sys.exit(main())
