"""The cancellation contract as it shows on the links: reads every message of a run and knows no part's state.

Must not know: how an engine's parts come to say what they say.

What a part believes of itself may be wrong in the same way as what it does; what it says to the others cannot be taken back.
"""

from collections.abc import Callable, Iterable

import attrs

from layered_llm.domain.columns import unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.ids import ApiId, RequestId, api_of
from layered_llm.domain.messages.api_text import (
    Abort,
    Accepted,
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Rejected,
    Submit,
    TextAnswer,
    TextEmitted,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, RuntimeReady, StepCompleted, StepFailed
from layered_llm.domain.messages.text_scheduler import AbortRequest, Admit, RequestsFinished
from layered_llm.testing.step_audit import StepAudit


@attrs.define(eq=False)
class _Story:
    """What was said about one request."""

    choices: int
    incarnation: int = 0
    aborts: int = 0
    verdicts: int = 0
    ends: int = 0
    """Ends of the whole request that its API process has taken."""
    finished: dict[int, int] = attrs.field(factory=dict)
    """How often each choice's last row was taken by its API process."""
    confirmed: dict[int, int] = attrs.field(factory=dict)
    """How often the scheduler finished each choice."""


@attrs.define(eq=False)
class WireAudit:
    """Implements `LinkObserver`. `broken` grows by one sentence for each message that should not be."""

    _now: Callable[[], float]
    broken: list[str] = attrs.field(init=False, factory=list)
    _stories: dict[RequestId, _Story] = attrs.field(init=False, factory=dict)
    _sent_by: dict[ApiId, int] = attrs.field(init=False, factory=dict)
    _steps: StepAudit = attrs.field(
        init=False, default=attrs.Factory(lambda self: StepAudit(self._now, self.broken), takes_self=True)
    )

    def sent(self, message: object) -> None:
        match message:
            case Submit():
                self._on_open(message.request, message.params.n, message.incarnation)
            case Tokenize() | Detokenize() | DescribeTokenizer():
                self._on_open(message.request, 0, 0)
            case Abort():
                self._count_sent(message.request)
                self._on_abort(message)
            case ExecuteStep():
                self._steps.sent(message)
            case _:
                pass

    def taken(self, message: object) -> None:
        match message:
            case Accepted() | Rejected() | Tokenized() | Detokenized() | TokenizerDescribed():
                self._on_verdict(message)
            case TextEmitted():
                self._on_text(message)
            case RequestsFinished():
                self._on_finished(message)
            case Admit():
                self._steps.admitted(message)
            case AbortRequest():
                self._steps.aborted(message.request)
            case RuntimeReady():
                self._steps.sized(message)
            case StepCompleted():
                self._steps.completed(message)
            case StepFailed():
                self._steps.failed()
            case _:
                pass

    def sent_by(self, api: ApiId) -> int:
        """Submits and aborts of this API process that are on the link, or were."""
        return self._sent_by.get(api, 0)

    def check_ended(self, requests: Iterable[RequestId]) -> None:
        """To be called when these requests have been read to their end."""
        for request in requests:
            story = self._stories[request]
            if (story.ends, story.aborts) != (1, 0):
                self._break(f"C1: request {request} has {story.ends} ends and {story.aborts} aborts")

    def _count_sent(self, request: RequestId) -> None:
        api = api_of(request)
        self._sent_by[api] = self.sent_by(api) + 1

    def _on_open(self, request: RequestId, choices: int, incarnation: int) -> None:
        self._count_sent(request)
        if request in self._stories:
            self._break(f"C1: request {request} is submitted twice")
        self._stories[request] = _Story(choices, incarnation)

    def _on_abort(self, message: Abort) -> None:
        request, story = message.request, self._stories.get(message.request)
        if story is None:
            self._break(f"C3: request {request} is aborted before it is submitted")
            return
        self._compare(story, request, message.incarnation)
        story.aborts += 1
        if story.aborts > 1:
            self._break(f"C2: request {request} is aborted {story.aborts} times")

    def _on_verdict(self, verdict: Accepted | Rejected | TextAnswer) -> None:
        story = self._stories[verdict.request]
        self._compare(story, verdict.request, verdict.incarnation if isinstance(verdict, Accepted | Rejected) else 0)
        story.verdicts += 1
        if story.verdicts > 1:
            self._break(f"C1: request {verdict.request} gets verdict number {story.verdicts}")

    def _on_text(self, message: TextEmitted) -> None:
        columns = zip(unpack_i64(message.requests), unpack_i32(message.choices), unpack_i8(message.finish_reasons), strict=True)
        for request, choice, reason in columns:
            story = self._stories[RequestId(request)]
            self._compare(story, RequestId(request), message.incarnation)
            if story.ends or choice in story.finished:
                self._break(f"C6: choice {choice} of request {request} goes on after its end")
            if reason != FinishReason.RUNNING:
                story.finished[choice] = story.finished.get(choice, 0) + 1
        for request in unpack_i64(message.ended):
            story = self._stories[RequestId(request)]
            story.ends += 1
            if story.ends > 1:
                self._break(f"C1: request {request} ends {story.ends} times")
            if story.finished != dict.fromkeys(range(story.choices), 1):
                self._break(f"C1: request {request} ends; its {story.choices} choices were finished {story.finished} times")

    def _on_finished(self, message: RequestsFinished) -> None:
        for request, choice in zip(unpack_i64(message.requests), unpack_i32(message.choices), strict=True):
            confirmed = self._stories[RequestId(request)].confirmed
            confirmed[choice] = confirmed.get(choice, 0) + 1
            if confirmed[choice] > 1:
                self._break(f"C3: the scheduler finishes choice {choice} of request {request} twice")

    def _compare(self, story: _Story, request: RequestId, incarnation: int) -> None:
        if story.incarnation != incarnation:
            self._break(f"C3: request {request} has incarnation {story.incarnation}, it is spoken of as {incarnation}")

    def _break(self, sentence: str) -> None:
        self.broken.append(sentence)
