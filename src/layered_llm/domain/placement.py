"""Where a request stands among others; nothing here changes what it says.

Must not know: queues, API keys, JSON names.
"""

from typing import Final

import attrs

from layered_llm.domain.errors import ParameterError

MAX_CACHE_SALT_CHARS: Final = 1024
_PRIORITY_LIMIT: Final = 1 << 63


@attrs.frozen
class CacheRoot:
    """Requests of one root share what is computed of their prefixes; those of different roots never do.

    Its parts are kept side by side and never joined into one text, so that no tenant can spell another one's root.
    """

    tenant: str = ""
    """None where tenants share."""
    cache_salt: str | None = None


@attrs.frozen(kw_only=True)
class Placement:
    """Raises ParameterError, naming the field, for a value out of range."""

    cache_salt: str | None = None
    """Requests with different salts, or with one and without, share no computed prefix, not even through its timing."""
    priority: int = 0
    """The lowest is served first, where the operator chose to serve by priority."""
    tenant: str = ""
    """Whose request it is; tenants take turns and, by default, share no computed prefix."""

    def __attrs_post_init__(self) -> None:
        if self.cache_salt is not None and not 0 < len(self.cache_salt) <= MAX_CACHE_SALT_CHARS:
            raise ParameterError(
                "cache_salt", f"cache_salt must have 1 to {MAX_CACHE_SALT_CHARS} characters, got {len(self.cache_salt)}"
            )
        if not -_PRIORITY_LIMIT <= self.priority < _PRIORITY_LIMIT:
            raise ParameterError("priority", "priority must be a signed 64-bit integer")

    def cache_root(self, *, shares_prefixes: bool) -> CacheRoot:
        """What the request reads of the prefix cache, and adds to; with `shares_prefixes` tenants have one cache."""
        return CacheRoot("" if shares_prefixes else self.tenant, self.cache_salt)


ANYWHERE: Final = Placement()
