"""Random runs against a scheduler that works one step ahead, as the real one may."""

import random
from collections import deque

import attrs
import pytest

from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import Abort, Accepted, Rejected
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Admit,
    Queued,
    Refused,
    SchedulerToText,
    StepsTaken,
    StopChoice,
    TextToScheduler,
)
from layered_llm.domain.verdicts import RefuseReason
from layered_llm.text.core import Outgoing, Prepared
from support.text_core import API, OTHER_API, CoreBench, files, requests_finished, tokens_emitted
from support.text_tokenizers import byte_level, llama_style

TOKENIZERS = {"byte-level": byte_level(), "llama": llama_style()}


@attrs.define
class FakeScheduler:
    """Answers orders and samples random tokens; what it says waits in `said` until it is delivered."""

    chance: random.Random
    vocabulary: int
    said: deque[SchedulerToText] = attrs.field(factory=deque)
    open: dict[RequestId, Admit] = attrs.field(factory=dict)
    running: dict[tuple[RequestId, int], list[int]] = attrs.field(factory=dict)
    steps: int = 0
    taken: list[int] = attrs.field(factory=list)

    def obey(self, order: TextToScheduler) -> None:
        match order:
            case Admit(request=request) if self.chance.random() < 0.1:
                self.said.append(Refused(request=request, reason=RefuseReason.QUEUE_FULL, limit=1, actual=1))
            case Admit(request=request):
                self.said.append(Queued(request=request))
                self.running |= {(request, choice): [] for choice in range(order.choices)}
                self.open[request] = order
            case AbortRequest(request=request):
                self.finish([key for key in self.running if key[0] == request], FinishReason.ABORT)
            case StopChoice(request=request, choice=choice, output_tokens=tokens):
                assert 0 < tokens
                if (request, choice) in self.running:
                    self.finish([(request, choice)], FinishReason.STOP)
            case StepsTaken(step=step):
                self.taken.append(step)

    def step(self) -> None:
        """One token for some of the running choices."""
        keys = [key for key in self.running if self.chance.random() < 0.7]
        rows, ended = [], []
        for request, choice in keys:
            admit, output = self.open[request], self.running[request, choice]
            token = self.chance.randrange(self.vocabulary)
            if token in admit.sampling.end_ids and len(output) < admit.sampling.min_tokens:
                token = 3
            rows.append((request, choice, len(output), token))
            output.append(token)
            if token in admit.sampling.end_ids:
                ended.append(((request, choice), FinishReason.STOP))
            elif len(output) == admit.max_tokens:
                ended.append(((request, choice), FinishReason.LENGTH))
        self.steps += 1
        self.said.append(tokens_emitted(rows, step=self.steps))
        for key, reason in ended:
            self.finish([key], reason)

    def finish(self, keys: list[tuple[RequestId, int]], reason: FinishReason) -> None:
        if keys:
            self.said.append(requests_finished((*key, reason, len(self.running[key])) for key in keys))
        for key in keys:
            del self.running[key]


@attrs.define
class Run:
    """One random run; every order may be delivered late, every abort may cross an end."""

    bench: CoreBench
    scheduler: FakeScheduler
    chance: random.Random
    pending: dict[RequestId, Prepared | Rejected] = attrs.field(factory=dict)
    aborted: set[RequestId] = attrs.field(factory=set)
    aborts_emitted: int = 0

    def take(self, outgoing: Outgoing) -> None:
        self.bench.take(outgoing)
        for order in outgoing.to_scheduler:
            self.scheduler.obey(order)

    def submit(self) -> None:
        preparation = self.bench.begin(
            Prompt.of_token_ids([3] * self.chance.randrange(3)),
            api=self.chance.choice([API, OTHER_API]),
            n=self.chance.choice([1, 1, 3]),
            max_tokens=self.chance.randrange(1, 12),
            min_tokens=0,
            stop=self.chance.choice([(), ("a",), ("b ", "c"), ("\ufffd",)]),
            stop_token_ids=self.chance.choice([(), (5,)]),
            ignore_eos=self.chance.random() < 0.3,
            include_stop_str_in_output=self.chance.random() < 0.3,
            skip_special_tokens=self.chance.random() < 0.5,
        )
        self.pending[preparation.request] = preparation.run()

    def finish_preparation(self) -> None:
        if self.pending:
            request = self.chance.choice(list(self.pending))
            self.take(self.bench.core.prepared(request, self.pending.pop(request)))

    def abort(self) -> None:
        if self.bench.views:
            request = self.chance.choice(list(self.bench.views))
            self.aborts_emitted += 1
            view = self.bench.views[request]
            if view.usage is None:
                self.aborted.add(request)
            self.take(self.bench.core.abort(Abort(request=request, reason=AbortReason.CLIENT_GONE)))

    def deliver(self) -> None:
        if self.scheduler.said:
            self.take(self.bench.core.from_scheduler(self.scheduler.said.popleft()))

    def drain(self) -> None:
        while self.pending or self.scheduler.said or self.scheduler.running:
            self.finish_preparation()
            if self.scheduler.running:
                self.scheduler.step()
            while self.scheduler.said:
                self.deliver()


@pytest.mark.parametrize("family", TOKENIZERS)
@pytest.mark.parametrize("seed", range(40))
def test_every_request_ends_once_and_nothing_is_kept(family: str, seed: int) -> None:
    chance = random.Random(seed)
    tokenizer = TOKENIZERS[family]
    bench = CoreBench.of(files(tokenizer, eos_ids=[1, 2]))
    run = Run(bench, FakeScheduler(chance, tokenizer.vocabulary_size), chance)
    actions = [run.submit, run.finish_preparation, run.scheduler.step, run.deliver, run.deliver, run.deliver]
    for _ in range(400):
        chance.choice(actions if chance.random() < 0.93 else [run.abort])()
    run.drain()

    bench.assert_quiescent()
    statistics = bench.core.statistics()
    handled = statistics.counters.aborts_handled + statistics.counters.aborts_forwarded + statistics.counters.aborts_late
    assert run.aborts_emitted == handled
    assert list(range(1, run.scheduler.steps + 1)) == run.scheduler.taken
    for request, view in bench.views.items():
        if isinstance(view.verdict, Accepted) and request not in run.aborted:
            assert view.usage is not None
            assert view.usage.completion_tokens == sum(len(choice.token_ids) for choice in view.choices)
            assert all(choice.reason is not FinishReason.RUNNING for choice in view.choices)


@pytest.mark.parametrize("family", TOKENIZERS)
def test_without_stop_strings_the_shown_text_is_the_decoding_of_the_token_ids(family: str) -> None:
    tokenizer = TOKENIZERS[family]
    chance = random.Random(5)
    bench = CoreBench.of(files(tokenizer, eos_ids=[]))
    scheduler = FakeScheduler(chance, tokenizer.vocabulary_size)
    run = Run(bench, scheduler, chance)
    for _ in range(12):
        preparation = bench.begin(Prompt.of_token_ids([3]), n=2, max_tokens=30, skip_special_tokens=chance.random() < 0.5)
        run.pending[preparation.request] = preparation.run()
    run.drain()
    for order in bench.admits:
        for choice in bench.views[order.request].choices:
            shown = {skip: tokenizer.decode(choice.token_ids, skip_special_tokens=skip) for skip in (False, True)}
            assert choice.text in shown.values()
