"""What every endpoint works with.

Must not know: routes.
"""

from collections.abc import Callable
from typing import assert_never

import attrs

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.messages.supervision import EnginePhase
from layered_llm.domain.placement import Placement
from layered_llm.domain.ports.engine import BacklogFull, Engine, EngineLost, RequestAborted
from layered_llm.transport.http.exchange import api_error
from layered_llm.transport.http.exchange.api_error import ApiError, error_of
from layered_llm.transport.http.exchange.api_keys import ApiKeys
from layered_llm.transport.http.exchange.byte_budget import ByteBudget, ByteHold, Over
from layered_llm.transport.http.exchange.drain import Drain
from layered_llm.transport.http.exchange.fair_work import FairWork
from layered_llm.transport.http.exchange.refusals import Refusals
from layered_llm.transport.http.exchange.settings import HttpSettings
from layered_llm.transport.http.hypercorn_server.listening import Listening


@attrs.frozen(kw_only=True, eq=False)
class HttpContext:
    """The engine, the settings, and the sources of time and randomness, which are passed in."""

    engine: Engine
    settings: HttpSettings
    keys: ApiKeys
    listening: Listening
    drain: Drain
    wall_clock: Callable[[], float]
    """Unix time in seconds."""
    new_hex_id: Callable[[], str]
    """A new random id for each request that brings none."""
    refusals: Refusals = attrs.field(factory=Refusals)
    answers: ByteBudget = attrs.field(
        default=attrs.Factory(
            lambda self: ByteBudget(self.settings.max_unsent_answer_bytes, self.settings.max_unsent_answer_bytes_per_client),
            takes_self=True,
        )
    )
    """Whole answers as they grow, and of streamed ones what their readers have not taken."""
    fair_work: FairWork = attrs.field(factory=FairWork)
    """Large bodies are parsed and written one after the other, by turns between accounts: several would share one interpreter
    lock, and so only take more memory."""

    def priority_refused(self, placement: Placement) -> ApiError | None:
        """A priority that the server does not go by would be ignored in silence."""
        if placement.priority == 0 or self.settings.takes_priority:
            return None
        message = "priority must be 0: this server does not schedule by priority (start it with --schedule-policy priority)"
        return api_error.bad_parameter(ParameterError("priority", message))

    def unavailable(self) -> ApiError | None:
        """Why no request can be taken now, if so."""
        if self.drain.is_active:
            return api_error.shutting_down(self.settings.retry_after_s)
        status = self.engine.status()
        if status.phase is not EnginePhase.READY:
            return api_error.not_ready(status, self.settings.retry_after_s)
        return None

    def served_name(self, asked: str | None) -> str | ApiError:
        """The model name that a response echoes."""
        names = self.settings.served_model_names
        if asked is None:
            return names[0]
        if asked in names or self.settings.any_model_name:
            return asked
        return error_of(
            "model_not_found",
            f"The model {asked!r} does not exist. This server serves: {', '.join(map(repr, names))}.",
            param="model",
        )

    def no_room_for_answer(self, over: Over, kept: ByteHold) -> ApiError:
        """The error of an answer that does not fit beside the others, or that never will."""
        match over:
            case Over.ACCOUNT if kept.is_alone:
                message = (
                    f"The answer takes more than {self.answers.account_bytes} bytes before it is complete; ask for fewer "
                    "choices, tokens or log probabilities, or for a stream."
                )
                return api_error.bad_request(message, param="stream", code="answer_too_large")
            case Over.ACCOUNT:
                message = f"The answers that this client waits for exceed {self.answers.account_bytes} bytes."
                return error_of("too_many_bytes", message, retry_after_s=self.settings.retry_after_s)
            case Over.PROCESS:
                message = "The server has no room for another whole answer."
                return error_of("server_full", message, retry_after_s=self.settings.retry_after_s)
            case _ as unreachable:
                assert_never(unreachable)

    def engine_lost(self) -> ApiError:
        return api_error.engine_lost(self.engine.status(), self.settings.retry_after_s)

    def lost(self, why: EngineLost) -> ApiError:
        """Why nothing more comes of a request."""
        match why:
            case RequestAborted():
                return api_error.ABORTED_BY_ID
            case BacklogFull():
                limit = self.answers.account_bytes
                message = f"The answer was read too slowly: at most {limit} bytes wait for one client."
                return error_of("too_many_bytes", message, retry_after_s=self.settings.retry_after_s)
            case EngineLost():
                return self.engine_lost()
            case _ as unreachable:
                assert_never(unreachable)

    def shutting_down(self) -> ApiError:
        return api_error.shutting_down(self.settings.retry_after_s)
