"""How many requests were refused before anybody looked at what they ask, by reason.

Must not know: what is refused, who adds up.
"""

from typing import Final

import attrs

from layered_llm.domain.metrics import counter
from layered_llm.transport.http.exchange.api_error import ApiError

REASONS: Final = ("invalid_api_key", "admin_key_required", "host_not_allowed", "origin_not_allowed", "unsupported_media_type")
"""The codes of the errors."""


@attrs.define(eq=False)
class Refusals:
    """Counters since the start of the process."""

    _counts: dict[str, int] = counter(
        "http_requests_refused_total",
        "Requests that were refused for their key, their Host or their Origin, by the code of the error.",
        label="reason",
        factory=lambda: dict.fromkeys(REASONS, 0),
    )

    def count(self, error: ApiError) -> None:
        """Raises KeyError for an error that is none of these."""
        self._counts[error.code or ""] += 1
