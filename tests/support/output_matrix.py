"""Every way to compute the same requests, and what they say in each."""

import enum
import itertools
from collections.abc import Iterable, Sequence

import attrs

from layered_llm.domain.messages.text_scheduler import Admit
from layered_llm.runtime.device.device import Device
from support.scheduling_engine import Engine
from support.scheduling_rig import ChoiceKey, policy

WHOLE_PROMPTS_TOKENS = 4096
CROWD = 16


class Cache(enum.Enum):
    """What it holds when the requests come."""

    OFF = enum.auto()
    COLD = enum.auto()
    WARM = enum.auto()
    PARTLY_EVICTED = enum.auto()


class Company(enum.Enum):
    """Who runs beside a request."""

    ALONE = enum.auto()
    CROWD = enum.auto()
    PREEMPTED = enum.auto()
    """A crowd with too few pages for all."""


@attrs.frozen
class Case:
    cache: Cache
    chunk_tokens: int
    page_size: int
    in_flight: int
    company: Company

    def __str__(self) -> str:
        chunk = "whole" if self.chunk_tokens == WHOLE_PROMPTS_TOKENS else str(self.chunk_tokens)
        names = (self.cache.name.lower(), f"chunk-{chunk}", f"page-{self.page_size}", f"flight-{self.in_flight}")
        return "-".join((*names, self.company.name.lower()))


def all_cases(caches: Iterable[Cache]) -> list[Case]:
    """The full product, but for what cannot be: in steps of one token whoever decodes has the step, so that nobody grows beside
    another one and nobody is preempted.
    """
    axes = (caches, (1, 7, WHOLE_PROMPTS_TOKENS), (1, 4, 16), (1, 2), Company)
    cases = [Case(*values) for values in itertools.product(*axes)]
    return [case for case in cases if case.company is not Company.PREEMPTED or case.chunk_tokens > 1]


def covering(cases: Sequence[Case]) -> list[Case]:
    """Some of the cases, in which each two values that stand together in one of `cases` stand together too."""
    missing = set().union(*map(_pairs, cases))
    chosen: list[Case] = []
    while missing:
        chosen.append(max(cases, key=lambda case: len(_pairs(case) & missing)))
        missing -= _pairs(chosen[-1])
    return chosen


def play(case: Case, device: Device, crowd: Sequence[Admit], *, crowded_tokens: int) -> dict[ChoiceKey, list[int]]:
    """What each request says; in a crowd with `crowded_tokens` of KV cache, where it is to be preempted.

    A device that served another case before may serve this one. Fails where the case is not what it is called.
    """
    is_crowded = case.company is Company.PREEMPTED
    limits = device.limits
    if is_crowded:
        pages = -(-crowded_tokens // case.page_size)
        limits = attrs.evolve(limits, pages=pages, context_tokens=min(limits.context_tokens, pages * case.page_size))
    bounds = policy(
        budget=case.chunk_tokens, running=CROWD, in_flight=case.in_flight, cache=case.cache is not Cache.OFF, credit=CROWD
    )
    engine = Engine(device, bounds, limits)
    groups = [[message] for message in crowd] if case.company is Company.ALONE else [crowd]
    if case.cache in {Cache.WARM, Cache.PARTLY_EVICTED}:
        _run(engine, groups, flushes=False)
        engine.forget()
    if case.cache is Cache.PARTLY_EVICTED:
        engine.evict_half()
    before = engine.scheduler.statistics()
    outputs = _run(engine, groups, flushes=case.cache is Cache.COLD)
    after = engine.scheduler.statistics()
    assert is_crowded == (after.counters.preemptions > before.counters.preemptions)
    assert case.cache is not Cache.OFF or not after.counters.prefix_hit_tokens
    if case.cache in {Cache.WARM, Cache.PARTLY_EVICTED} and not is_crowded:
        computed = after.counters.prefill_tokens - before.counters.prefill_tokens
        assert 0 < after.counters.prefix_hit_tokens - before.counters.prefix_hit_tokens
        assert (case.cache is Cache.PARTLY_EVICTED) == (before.pages_evicted > 0)
        assert computed < sum(len(message.prompt_ids) // 4 for message in crowd)
    return outputs


def _run(engine: Engine, groups: Iterable[Sequence[Admit]], *, flushes: bool) -> dict[ChoiceKey, list[int]]:
    for group in groups:
        if flushes:
            engine.scheduler.flush_cache()
        for message in group:
            engine.admit(message)
        engine.run()
    return dict(engine.outputs)


def _pairs(case: Case) -> set[tuple[tuple[int, object], ...]]:
    return set(itertools.combinations(enumerate(attrs.astuple(case)), 2))
