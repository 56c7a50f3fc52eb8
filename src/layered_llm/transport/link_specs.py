"""The links that there are, as values: which messages each end may send, under which tags.

Must not know: sockets, bytes, who runs in which process, what a message means.

One end of a link is bound by one process; any number of named peers connect to it. The processes, loops and cores that are
given `Links` run over ZMQ sockets as over the in-memory links of `layered_llm.testing`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Generic, Protocol, TypeVar

import attrs

from layered_llm.domain.messages import api_text, scheduler_runtime, supervision, text_scheduler
from layered_llm.transport.ports import GroupLink, MessageLink, PeerLink

MessageT = TypeVar("MessageT")
BoundT = TypeVar("BoundT")
ConnectedT = TypeVar("ConnectedT")

Tags = Mapping[bytes, type[MessageT]]
"""The messages of one direction of one link by their tags of one byte. A tag is never given to another class."""


@attrs.frozen(kw_only=True, eq=False)
class LinkSpec(Generic[BoundT, ConnectedT]):
    """One link: what its bound end sends, and what those that connect to it do."""

    from_bound: Tags[BoundT]
    from_connected: Tags[ConnectedT]


class Links(Protocol):
    """Opens ends of links by address. Each end is closed when its `with` block is left."""

    def bind(self, spec: LinkSpec[BoundT, ConnectedT], address: str) -> AbstractContextManager[PeerLink[BoundT, ConnectedT]]:
        """The end that any number of peers connect to."""

    def bind_group(
        self, spec: LinkSpec[BoundT, ConnectedT], address: str, peers: Sequence[str]
    ) -> AbstractContextManager[GroupLink[BoundT, ConnectedT]]:
        """The end that these peers, and nobody else, connect to."""

    def connect(
        self, spec: LinkSpec[BoundT, ConnectedT], address: str, name: str
    ) -> AbstractContextManager[MessageLink[ConnectedT, BoundT]]:
        """The end of the peer of this name; the other one may be bound later."""


API_TEXT: Final = LinkSpec[api_text.TextToApi, api_text.ApiToText](
    from_bound={
        b"a": api_text.Accepted,
        b"r": api_text.Rejected,
        b"t": api_text.TextEmitted,
        b"k": api_text.Tokenized,
        b"d": api_text.Detokenized,
        b"i": api_text.TokenizerDescribed,
    },
    from_connected={
        b"S": api_text.Submit,
        b"A": api_text.Abort,
        b"T": api_text.Tokenize,
        b"D": api_text.Detokenize,
        b"I": api_text.DescribeTokenizer,
    },
)
"""A text worker, and the API processes that connect to it."""
TEXT_SCHEDULER: Final = LinkSpec[text_scheduler.SchedulerToText, text_scheduler.TextToScheduler](
    from_bound={
        b"q": text_scheduler.Queued,
        b"r": text_scheduler.Refused,
        b"t": text_scheduler.TokensEmitted,
        b"f": text_scheduler.RequestsFinished,
    },
    from_connected={
        b"A": text_scheduler.Admit,
        b"X": text_scheduler.AbortRequest,
        b"S": text_scheduler.StopChoice,
        b"C": text_scheduler.StepsTaken,
    },
)
"""The scheduler, and the text workers."""
SCHEDULER_RUNTIME: Final = LinkSpec[scheduler_runtime.SchedulerToRuntime, scheduler_runtime.RuntimeToScheduler](
    from_bound={
        b"E": scheduler_runtime.ExecuteStep,
    },
    from_connected={
        b"w": scheduler_runtime.RuntimeWarmingUp,
        b"r": scheduler_runtime.RuntimeReady,
        b"c": scheduler_runtime.StepCompleted,
        b"f": scheduler_runtime.StepFailed,
    },
)
"""The scheduler, and the ranks of the runtime: a group."""
API_SUPERVISOR: Final = LinkSpec[supervision.SupervisorToApi, supervision.ApiToSupervisor](
    from_bound={
        b"s": supervision.EngineStatus,
        b"b": supervision.Heartbeat,
        b"q": supervision.StateQuery,
        b"e": supervision.EngineState,
        b"n": supervision.AbortByName,
        b"d": supervision.RequestsAborted,
        b"f": supervision.FindRequest,
        b"w": supervision.RequestFound,
        b"x": supervision.Stop,
    },
    from_connected={
        b"H": supervision.ApiHello,
        b"G": supervision.ApiGoodbye,
        b"Q": supervision.StateQuery,
        b"R": supervision.StateReport,
        b"N": supervision.AbortByName,
        b"D": supervision.RequestsAborted,
        b"F": supervision.FindRequest,
        b"W": supervision.RequestFound,
    },
)
"""The supervisor, and the API processes."""
ENGINE_SUPERVISOR: Final = LinkSpec[supervision.SupervisorToEngine, supervision.EngineToSupervisor](
    from_bound={
        b"z": supervision.EngineSized,
        b"d": supervision.ApiDied,
        b"q": supervision.StateQuery,
        b"x": supervision.Stop,
    },
    from_connected={
        b"P": supervision.ProcessReady,
        b"B": supervision.Heartbeat,
        b"R": supervision.StateReport,
    },
)
"""The supervisor, and the text workers and the scheduler of one generation."""
