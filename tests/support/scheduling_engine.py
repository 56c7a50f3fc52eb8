"""The scheduler over a real device: without the loops and links around them."""

from collections.abc import Callable
from random import Random

import attrs

from layered_llm.domain.columns import pack_i32, unpack_i8, unpack_i32, unpack_i64
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import RequestId, TextId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.text_scheduler import (
    AbortRequest,
    Admit,
    Queued,
    RequestsFinished,
    StepsTaken,
    TokenSampling,
    TokensEmitted,
)
from layered_llm.domain.placement import Placement
from layered_llm.runtime.device.device import Device
from layered_llm.runtime.scripted.scripted_device import ScriptedDevice, ScriptedPace
from layered_llm.runtime.scripted.scripts import HashScript
from layered_llm.scheduling.core import Scheduler
from layered_llm.scheduling.emission import Effects
from layered_llm.scheduling.pages import NO_STEP
from layered_llm.scheduling.plan import NextStep
from layered_llm.scheduling.policy import SchedulingPolicy
from support.scheduling_rig import ChoiceKey, policy

FIRST_ID, ID_COUNT = 97, 26
END_ID = 100
WORKER = TextId(0)


def engine_limits(*, pages: int, page_size: int, slots: int = 16) -> RuntimeLimits:
    return RuntimeLimits(
        pages=pages,
        page_size_tokens=page_size,
        slots=slots,
        context_tokens=pages * page_size,
        vocabulary_size=FIRST_ID + ID_COUNT,
    )


def scripted_device(limits: RuntimeLimits, now_us: Callable[[], int] = lambda: 0) -> Device:
    """Its tokens are a hash of the history that it reads back through the page tables."""
    return ScriptedDevice(
        limits=limits,
        script=HashScript(first_id=FIRST_ID, id_count=ID_COUNT),
        pace=ScriptedPace(step_us=0, token_us=0),
        wait=lambda _seconds: None,
        now_us=now_us,
    )


@attrs.define
class Engine:
    """Everything between an Admit and its tokens."""

    device: Device
    policy: SchedulingPolicy
    limits: RuntimeLimits | None = None
    """Less than what the device has."""
    scheduler: Scheduler = attrs.field(init=False)
    outputs: dict[ChoiceKey, list[int]] = attrs.field(init=False, factory=dict)
    reasons: dict[ChoiceKey, FinishReason] = attrs.field(init=False, factory=dict)
    _submitted: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.scheduler = Scheduler(limits=self.limits or self.device.limits, policy=self.policy)

    def admit(self, message: Admit) -> None:
        (answer,) = self.scheduler.handle(WORKER, message).outgoing
        assert isinstance(answer.message, Queued)
        for choice, known in enumerate(message.output_ids or (b"",) * message.choices):
            self.outputs[message.request, choice] = unpack_i32(known).tolist()

    def abort(self, request: int) -> None:
        self._receive(self.scheduler.handle(WORKER, AbortRequest(request=RequestId(request), reason=AbortReason.TIMEOUT)))

    def step(self) -> None:
        while isinstance(step := self.scheduler.plan(), NextStep):
            self.device.submit(step.message)
            self._submitted += 1
        if self._submitted:
            self._submitted -= 1
            self._receive(self.scheduler.complete(self.device.collect()))

    def run(self, max_steps: int = 20_000) -> dict[ChoiceKey, list[int]]:
        """What every choice so far said."""
        for _ in range(max_steps):
            if self.scheduler.is_quiescent:
                break
            self.step()
        assert self.scheduler.is_quiescent, "no progress"
        assert () == self.scheduler.check()
        assert self.reasons.keys() == self.outputs.keys()
        figures = self.scheduler.statistics()
        assert (0, 0, figures.pages_total) == (
            figures.pages_used,
            figures.pages_quarantined,
            figures.pages_free + figures.pages_cached,
        )
        return self.outputs

    def forget(self) -> None:
        """What was said so far, so that the same requests can be asked again."""
        self.outputs.clear()
        self.reasons.clear()

    def evict_half(self) -> None:
        """Forgets half of the pages that are kept for nobody, those used longest ago."""
        store = self.scheduler._running.pages
        store.give_back(store.take(store.free + -(-store.cached // 2)), NO_STEP)

    def _receive(self, effects: Effects) -> None:
        for outgoing in effects.outgoing:
            match outgoing.message:
                case TokensEmitted() as tokens:
                    columns = (unpack_i64(tokens.requests), unpack_i32(tokens.choices), unpack_i32(tokens.positions))
                    for request, choice, position, token in zip(*columns, unpack_i32(tokens.token_ids), strict=True):
                        assert position == len(self.outputs[request, choice])
                        self.outputs[request, choice].append(token)
                    self.scheduler.handle(WORKER, StepsTaken(step=tokens.step))
                case RequestsFinished() as finished:
                    keys = zip(unpack_i64(finished.requests), unpack_i32(finished.choices), strict=True)
                    for key, reason in zip(keys, unpack_i8(finished.reasons), strict=True):
                        assert key not in self.reasons
                        self.reasons[key] = FinishReason(reason)
                case _:
                    raise AssertionError(f"unexpected {outgoing.message}")


def scripted(limits: RuntimeLimits, policy: SchedulingPolicy) -> Engine:
    return Engine(scripted_device(limits), policy)


def hash_admit(request: int, prompt: list[int], tokens: int, *, choices: int = 1, salt: str | None = None) -> Admit:
    sampling = TokenSampling(temperature=1.0, top_p=1.0, top_k=0, seed=request % 3, min_tokens=0, end_ids=(END_ID,))
    return Admit(
        request=RequestId(request),
        choices=choices,
        prompt_ids=pack_i32(prompt),
        max_tokens=tokens,
        sampling=sampling,
        placement=Placement(cache_salt=salt),
    )


def random_workload(seed: int, *, requests: int = 16, most_prompt: int = 60, most_output: int = 30) -> list[Admit]:
    """Prompts that begin with one of three texts, at some length, and go on by themselves; some come twice."""
    random = Random(seed)
    texts = [[random.randrange(FIRST_ID) for _ in range(most_prompt)] for _ in range(3)]
    admits: list[Admit] = []
    for request in range(requests):
        text = random.choice(texts)[: random.randint(0, most_prompt)]
        own = [random.randrange(FIRST_ID) for _ in range(random.choice([0, 1, 5, 17]))]
        prompt = (text + own)[:most_prompt] or [request]
        choices = random.choice([1, 1, 1, 3])
        salt = random.choice([None, None, None, "x"])
        admits.append(hash_admit(request, prompt, random.randint(1, most_output), choices=choices, salt=salt))
    return admits


def alone(message: Admit) -> dict[ChoiceKey, list[int]]:
    """What the choices of one request say when each runs by itself, in whole prompts, without a cache."""
    engine = scripted(engine_limits(pages=128, page_size=1), policy(budget=128, running=1, cache=False))
    engine.admit(message)
    return engine.run()


def all_alone(workload: list[Admit]) -> dict[ChoiceKey, list[int]]:
    return {key: tokens for message in workload for key, tokens in alone(message).items()}
