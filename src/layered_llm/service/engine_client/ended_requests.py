"""How the last requests of one API process ended, for whoever asks later: `GET /requests/ID`.

Must not know: HTTP, clocks, who may ask.

Of each only ids, one word, and a bounded message are remembered.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import attrs

from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.supervision import RequestFate

MAX_ENDED_REQUESTS: Final = 4096
_GOOD: Final = tuple(reason.name.lower() for reason in (FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.LENGTH))
"""Ends that are no failure, the plainest first."""


@attrs.frozen(kw_only=True)
class EndedRequest:
    """One prompt's request."""

    body: RequestId
    """The first request of the body that it belonged to."""
    name: str | None
    tenant: str
    fate: RequestFate


class Named(Protocol):
    """What is known by ids and a name, open or ended."""

    @property
    def body(self) -> RequestId: ...

    @property
    def name(self) -> str | None: ...

    @property
    def tenant(self) -> str: ...


def is_meant(one: Named, request: RequestId | None, tenant: str | None, names: tuple[str, ...]) -> bool:
    """Whether it is the tenant's, with None anybody's, and of the body `request` or called by one of `names`."""
    return tenant in {None, one.tenant} and (one.body == request or (one.name is not None and one.name in names))


def fate_of_body(fates: Iterable[RequestFate]) -> RequestFate:
    """That of all its requests: the first failure, else the end that comes last among the good ones."""
    found = list(fates)
    failed = [fate for fate in found if fate.reason not in _GOOD]
    return failed[0] if failed else max(found, key=lambda fate: _GOOD.index(fate.reason))


def fate_among(
    ended: Iterable[EndedRequest], request: RequestId | None, tenant: str | None, names: tuple[str, ...]
) -> RequestFate | None:
    """The fate of the last body of the tenant, with None of anybody, that is known by one of these; oldest come first."""
    known = [one for one in ended if is_meant(one, request, tenant, names)]
    return fate_of_body(one.fate for one in known if one.body == known[-1].body) if known else None
