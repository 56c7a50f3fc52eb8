"""What a program gets back: deltas while a request goes on, a completion at its end, and what the engine holds.

Must not know: the engine, trio, how reports are gathered.

Finish reasons are OpenAI's words.
"""

from typing import Final, Literal

import attrs

from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.supervision import EngineState, Role, is_quiescent
from layered_llm.domain.stream import ChoiceDelta, SampledLogprob, Usage

FinishWord = Literal["stop", "length", "tool_calls", "abort", "error"]

_WORDS: Final[dict[FinishReason, FinishWord]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
    FinishReason.QUEUE_TIMEOUT: "error",
}


@attrs.frozen(kw_only=True)
class Delta:
    """What came for one choice since its last delta: the texts of a choice's deltas, joined, are the choice's text."""

    choice: int
    """0 … n - 1."""
    text: str
    token_ids: tuple[int, ...]
    """May be there without text, and the other way round: text is held back while it could be the start of a stop string."""
    finish_reason: FinishWord | None
    """None while the choice goes on."""
    matched_stop: str | int | None = None
    """The stop string or the stop token id that ended the choice."""
    logprobs: tuple[SampledLogprob, ...] = ()
    """One for each of `token_ids` where `SamplingParams.logprobs` asks for them, else none."""
    prompt_logprobs: tuple[SampledLogprob, ...] = ()
    """In a choice's first delta, one for each token of the prompt where they are asked for; the first one's is 0."""


@attrs.frozen(kw_only=True)
class Choice:
    """One whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishWord
    matched_stop: str | int | None = None
    logprobs: tuple[SampledLogprob, ...] = ()
    """One for each of `token_ids` where `SamplingParams.logprobs` asks for them, else none."""
    prompt_logprobs: tuple[SampledLogprob, ...] = ()
    """One for each token of the prompt where they are asked for; the first one's is 0, as it depends on nothing."""


@attrs.frozen(kw_only=True)
class Completion:
    """All answers to one prompt. With n=1, the default, `text` and its siblings are all that is needed."""

    choices: tuple[Choice, ...]
    """In order of their index; there are `n`."""
    usage: Usage
    """Of the whole request, all choices together."""
    prompt_token_ids: tuple[int, ...] = ()
    """The prompt's tokens where `SamplingParams.tells_prompt_ids` asks for them, else none."""

    @property
    def text(self) -> str:
        """Of the first choice, as are the other five."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishWord:
        return self.choices[0].finish_reason

    @property
    def matched_stop(self) -> str | int | None:
        return self.choices[0].matched_stop

    @property
    def logprobs(self) -> tuple[SampledLogprob, ...]:
        return self.choices[0].logprobs

    @property
    def prompt_logprobs(self) -> tuple[SampledLogprob, ...]:
        return self.choices[0].prompt_logprobs


@attrs.frozen(kw_only=True)
class Progress:
    """How far a batch is."""

    done: int
    """Prompts whose completions are there."""
    total: int
    completion_tokens: int
    """Of all prompts so far, those under way included."""


def to_delta(delta: ChoiceDelta) -> Delta:
    return Delta(
        choice=delta.choice,
        text=delta.text,
        token_ids=delta.token_ids,
        finish_reason=_WORDS.get(delta.finish_reason),
        matched_stop=delta.matched_stop,
        logprobs=tuple(delta.logprobs),
        prompt_logprobs=tuple(delta.prompt_logprobs),
    )


@attrs.define
class Collector:
    """Puts the deltas of one request together."""

    _deltas: dict[int, list[Delta]] = attrs.field(factory=dict)

    def add(self, delta: Delta) -> None:
        self._deltas.setdefault(delta.choice, []).append(delta)

    def completion(self, usage: Usage, prompt_token_ids: tuple[int, ...]) -> Completion:
        """Everything that was added. Raises InvariantViolated while a choice goes on."""
        choices = tuple(_choice(index, self._deltas[index]) for index in sorted(self._deltas))
        return Completion(choices=choices, usage=usage, prompt_token_ids=prompt_token_ids)


def _choice(index: int, deltas: list[Delta]) -> Choice:
    last = deltas[-1]
    if last.finish_reason is None:
        raise InvariantViolated(f"the request ended while choice {index} went on")
    return Choice(
        index=index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        finish_reason=last.finish_reason,
        matched_stop=last.matched_stop,
        logprobs=tuple(each for delta in deltas for each in delta.logprobs),
        prompt_logprobs=tuple(each for delta in deltas for each in delta.prompt_logprobs),
    )


@attrs.frozen(kw_only=True)
class EngineReport:
    """One moment."""

    is_quiescent: bool
    """Nothing is open, nothing is left of what was, and every page is back."""
    open_requests: int
    """Opened by this program."""
    running: int
    """Choices."""
    waiting: int
    pages_used: int
    pages_total: int
    violations: tuple[str, ...]
    """What the parts' own checks found broken: never anything."""
    silent: tuple[str, ...]
    """Parts that did not answer in time."""


def to_report(state: EngineState) -> EngineReport:
    gauges = {name: size for report in state.reports if report.role is Role.SCHEDULER for name, size in report.gauges}
    return EngineReport(
        is_quiescent=is_quiescent(state),
        open_requests=sum(report.open_requests for report in state.reports if report.role is Role.API),
        running=gauges.get("running", 0),
        waiting=gauges.get("waiting", 0),
        pages_used=gauges.get("pages_used", 0),
        pages_total=gauges.get("pages_total", 0),
        violations=tuple(text for report in state.reports for text in report.violations),
        silent=state.silent,
    )
