"""When all pages of an aborted request have come back.

Must not know: pages, why a request was aborted, clocks (time comes in as an argument).

Invariant: an abort waits for the last step that names its request, and no longer: nothing is kept when no step is in flight.
"""

import attrs

from layered_llm.domain.ids import RequestId, StepId
from layered_llm.scheduling.pools import NO_STEP


@attrs.frozen(kw_only=True)
class AbortRelease:
    """An abort whose request holds no page any more, in quarantine neither."""

    request: RequestId
    aborted_us: int
    """When the abort was handled."""
    steps: int
    """Steps in flight that had to be acknowledged first."""


@attrs.define(eq=False)
class AbortReleases:
    """The aborted requests that a step in flight still names."""

    _waiting: dict[StepId, list[AbortRelease]] = attrs.field(init=False, factory=dict)
    _acknowledged: StepId = attrs.field(init=False, default=NO_STEP)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def aborted(self, request: RequestId, last_step: StepId, now_us: int) -> tuple[AbortRelease, ...]:
        """`last_step` is the last step that names the request, NO_STEP for none; the release, where nothing is in flight."""
        steps = max(0, last_step - self._acknowledged)
        release = AbortRelease(request=request, aborted_us=now_us, steps=steps)
        if not steps:
            return (release,)
        self._waiting.setdefault(last_step, []).append(release)
        return ()

    def acknowledge(self, step: StepId) -> tuple[AbortRelease, ...]:
        """What waited for this step. Steps are acknowledged one by one, in order."""
        self._acknowledged = step
        return tuple(self._waiting.pop(step, ()))
