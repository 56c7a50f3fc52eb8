"""The engine as a library: what `layered_llm` itself exports.

Must not know: HTTP, the command line.
"""

from layered_llm.domain.errors import ParameterError
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.prompts import ChatMessage
from layered_llm.domain.ports.engine import EngineLost
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.stream import SampledLogprob, TokenLogprob, Usage
from layered_llm.domain.verdicts import RejectReason
from layered_llm.service.library.engine import Engine
from layered_llm.service.library.errors import EngineClosed, RequestFailed, RequestRejected
from layered_llm.service.library.llm import LLM
from layered_llm.service.library.opening import open_engine
from layered_llm.service.library.results import Choice, Completion, Delta, EngineReport, Progress
from layered_llm.service.library.stream import CompletionStream
from layered_llm.service.server.embedded import EngineStartFailed
from layered_llm.service.settings.settings import SettingsError

__all__ = [
    "LLM", "ChatMessage", "Choice", "Completion", "CompletionStream", "Delta", "Engine", "EngineClosed", "EngineLimits",
    "EngineLost", "EngineReport", "EngineStartFailed", "ParameterError", "Progress", "RejectReason", "RequestFailed",
    "RequestRejected", "SampledLogprob", "SamplingParams", "SettingsError", "TokenLogprob", "Usage", "open_engine",
]  # fmt: skip
