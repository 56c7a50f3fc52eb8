"""Fetches a checkpoint from a model hub, where there is a network, into the hub library's own cache.

Must not know: what is done with the checkpoint.
"""

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

from layered_llm.service.checkpoint import HubError

_FILES: Final = ("*.json", "*.jinja", "*.safetensors")


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
