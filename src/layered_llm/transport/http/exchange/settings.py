"""What the HTTP layer can be told.

Must not know: where a setting comes from.
"""

import math
from collections.abc import Mapping
from typing import Any

import attrs

from layered_llm.transport.http.exchange.request_checks import PageRules


@attrs.frozen(kw_only=True)
class About:
    """What the server tells of itself."""

    version: str = "0"
    model_path: str = ""
    fingerprint: str = "fp_0"
    """Of the version and of what its outputs depend on."""
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    """Names and values that JSON has, and no secrets."""


@attrs.frozen(kw_only=True)
class HttpSettings:
    """Fixed for the life of the application."""

    served_model_names: tuple[str, ...] = attrs.field(validator=attrs.validators.min_len(1))
    """The first is the model's name where a request gives none."""
    any_model_name: bool
    """Take and echo every model name, for clients that send one of their own."""
    takes_priority: bool
    """Whether the scheduler serves by priority; else a request that names one is refused."""
    created_s: int
    """Unix time that `/v1/models` tells as the models' creation."""
    heartbeat_interval_s: float
    """A stream is silent no longer than this: a comment is sent then. Choose 15 s or more; some clients choke on comments."""
    max_body_bytes: int
    body_timeout_s: float
    """How long a client may take to send its body."""
    max_unfinished_body_bytes: int = 256 << 20
    """Bodies that are not parsed yet, of all clients of this process."""
    max_unfinished_body_bytes_per_client: int = 64 << 20
    """The same of one API key, or of one address where no key is needed."""
    max_unsent_answer_bytes: int = 256 << 20
    """Answers that are sent at once, while they grow, of all clients of this process."""
    max_unsent_answer_bytes_per_client: int = 64 << 20
    """The same of one API key, or of one address where no key is needed."""
    retry_after_s: int
    """When a refused client may try again."""
    first_token_timeout_s: float = math.inf
    """How long a response may be without output at its beginning, its time in the queue included."""
    has_vllm_metrics: bool = False
    """Whether `/metrics` tells the figures that vLLM has too under vLLM's names as well."""
    idle_timeout_s: float = math.inf
    """How long it may be without output later; neither limits how long it may go on."""
    pages: PageRules = attrs.field(factory=PageRules)
    """Whose web pages may use the server."""
    about: About = attrs.field(factory=About)
