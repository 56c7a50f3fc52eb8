"""Questions that are passed on to several peers under numbers of our own, and what they answer.

Must not know: what a question says, what an answer comes to, clocks (time comes in as an argument).
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import attrs

QuestionT = TypeVar("QuestionT")
AnswerT = TypeVar("AnswerT")


@attrs.define(eq=False)
class Gathered(Generic[QuestionT, AnswerT]):
    """A question, and what came of it."""

    asker: str
    question: QuestionT
    """As it was asked, under the asker's own number."""
    number: int
    """The one to pass it on under."""
    expires_s: float
    missing: set[str]
    """Who has not answered."""
    answers: list[AnswerT] = attrs.field(factory=list)


@attrs.define(eq=False)
class Gathering(Generic[QuestionT, AnswerT]):
    """The questions that somebody still has to answer; each method but `ask` returns those that this is over for."""

    _open: dict[int, Gathered[QuestionT, AnswerT]] = attrs.field(init=False, factory=dict)
    _next_number: int = attrs.field(init=False, default=1)

    def ask(self, asker: str, question: QuestionT, asked: Iterable[str], expires_s: float) -> int:
        """The number to pass it on under."""
        number, self._next_number = self._next_number, self._next_number + 1
        self._open[number] = Gathered(asker, question, number, expires_s, set(asked))
        return number

    def answered(self) -> tuple[Gathered[QuestionT, AnswerT], ...]:
        """Those that nobody is missing for."""
        return self._take(lambda gathered: not gathered.missing)

    def answer(self, peer: str, number: int, answer: AnswerT) -> tuple[Gathered[QuestionT, AnswerT], ...]:
        """One peer's word; one that nobody asked for is dropped."""
        gathered = self._open.get(number)
        if gathered is None or peer not in gathered.missing:
            return ()
        gathered.missing.discard(peer)
        gathered.answers.append(answer)
        return self.answered()

    def forget(self, peer: str) -> tuple[Gathered[QuestionT, AnswerT], ...]:
        """The peer is gone: it neither answers nor waits for an answer."""
        self._open = {number: gathered for number, gathered in self._open.items() if gathered.asker != peer}
        for gathered in self._open.values():
            gathered.missing.discard(peer)
        return self.answered()

    def give_up(self, peers: Iterable[str]) -> tuple[Gathered[QuestionT, AnswerT], ...]:
        """These peers will not answer; they stay among the missing."""
        lost = set(peers)
        return self._take(lambda gathered: not lost.isdisjoint(gathered.missing))

    def expire(self, now_s: float) -> tuple[Gathered[QuestionT, AnswerT], ...]:
        """Those whose time is over."""
        return self._take(lambda gathered: gathered.expires_s <= now_s)

    def _take(self, is_over: Callable[[Gathered[QuestionT, AnswerT]], bool]) -> tuple[Gathered[QuestionT, AnswerT], ...]:
        over = [number for number, gathered in self._open.items() if is_over(gathered)]
        return tuple(self._open.pop(number) for number in over)
