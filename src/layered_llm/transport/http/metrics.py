"""Reports of all processes in Prometheus' text format 0.0.4.

Must not know: HTTP, how a figure is counted, how reports are gathered.

Samples arrive with their full names, labels included, and are summed over processes: that is right for counters and for
histogram buckets, and gauges are taken from one process alone. Every family has exactly one HELP and one TYPE line, and its
samples stand together, buckets by rising bound.

A sum without the part of a process that did not answer would look as if the counter had begun again, and the next one as if all
of it had happened in between: then no sums are told at all, and whoever reads them sees a gap.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from layered_llm.domain.messages.supervision import EngineState, Role
from layered_llm.transport.http.vllm_metrics import number, vllm_lines

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PREFIX: Final = "layered_llm_"

_BUCKET_BOUND: Final = re.compile(r'\ble="([^"]+)"')
_HISTOGRAM_PARTS: Final = ("_bucket", "_sum", "_count")


@attrs.frozen
class _Family:
    kind: str
    text: str


_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "requests_running": ("running", "Choices that hold a slot."),
    "requests_waiting": ("waiting", "Choices that wait for their first step."),
    "kv_pages_total": ("pages_total", "Pages of the KV cache."),
    "kv_pages_free": ("pages_free", "Pages that hold nothing."),
    "kv_pages_cached": ("pages_cached", "Pages that only the prefix index holds; they can be evicted."),
    "kv_pages_used": ("pages_used", "Pages that requests hold."),
}
"""Name of the metric, name of the scheduler's gauge, and help."""

_KNOWN: Final[Mapping[str, _Family]] = {
    "aborts_emitted_total": _Family("counter", "Aborts that API processes sent: requests whose scope was left early."),
    "aborts_handled_total": _Family("counter", "Aborts that ended a request, in a text worker or in the scheduler."),
    "aborts_late_total": _Family("counter", "Aborts that found their request already ended."),
    "aborts_lost_total": _Family("counter", "Aborts to an engine that has ended since, and with it what it counted of them."),
    "requests_accepted_total": _Family("counter", "Requests that were queued."),
    "requests_rejected_total": _Family("counter", "Requests that were refused."),
    "requests_refused_total": _Family("counter", "Requests that the scheduler refused, by reason."),
    "http_requests_refused_total": _Family(
        "counter", "Requests that were refused for their key, their Host or their Origin, by the code of the error."
    ),
    "queue_timeouts_total": _Family("counter", "Requests that were ended since nothing of them had started in time."),
    "requests_ended_total": _Family("counter", "Accepted requests that the engine ended, whatever their finish reasons."),
    "requests_failed_total": _Family("counter", "Requests that ended with an error of the engine."),
    "requests_lost_total": _Family("counter", "Requests whose engine process died."),
    "choices_finished_total": _Family("counter", "Choices that ended, by finish reason."),
    "messages_dropped_total": _Family("counter", "Messages on a process's sockets that were none of this server's."),
    "late_rows_total": _Family("counter", "Rows of output that came for a request that was over."),
    "prompt_tokens_total": _Family("counter", "Prompt tokens of accepted requests."),
    "prompt_tokens_computed_total": _Family("counter", "Prompt tokens that were computed in steps."),
    "generation_tokens_total": _Family("counter", "Output tokens of choices that ended, as their usage counts them."),
    "generation_tokens_computed_total": _Family("counter", "Output tokens that were computed in steps as their input."),
    "surplus_tokens_total": _Family("counter", "Sampled tokens that were dropped, since their choice had ended."),
    "questions_answered_total": _Family("counter", "Questions about the tokenizer that were answered."),
    "stop_strings_matched_total": _Family("counter", "Choices that a stop string ended."),
    "stops_handled_total": _Family("counter", "Stop strings that ended a choice in the scheduler."),
    "stops_late_total": _Family("counter", "Stop strings that found their choice already ended."),
    "prefix_cache_lookup_tokens_total": _Family("counter", "Tokens of starting choices, looked up in the prefix index."),
    "prefix_cache_hit_tokens_total": _Family("counter", "Tokens of starting choices, found in the prefix index."),
    "kv_pages_evicted_total": _Family("counter", "Pages of the prefix index that were given to somebody else."),
    "queue_time_seconds": _Family("histogram", "From the queueing of a request to the first step that computes some of it."),
    "request_prefill_time_seconds": _Family(
        "histogram", "From the first step that computes some of a request to its first token."
    ),
    "step_fill_ratio": _Family("histogram", "Tokens that a step computes, as a part of the most that it may."),
    "abort_release_seconds": _Family("histogram", "From an abort in the scheduler until its request's pages are all back."),
    "abort_release_steps": _Family("histogram", "Steps in flight that these pages had to wait for."),
    "step_tokens": _Family("histogram", "Tokens that a step computes."),
    "step_new_tokens": _Family("histogram", "Tokens that a step is the first to compute, of prompts, or to sample."),
    "request_inference_time_seconds": _Family("histogram", "From the first step that computes some of a request to its end."),
    "request_preemptions": _Family("histogram", "How often choices of a request that ended were put back."),
    "preemptions_total": _Family("counter", "Running choices that were put back to be computed again."),
    "steps_total": _Family("counter", "Steps that the runtime executed."),
    "time_to_first_token_seconds": _Family("histogram", "From the submit of a request to its first token."),
    "inter_token_latency_seconds": _Family("histogram", "Between two tokens of a choice."),
    "generation_tokens_emitted_total": _Family("counter", "Output tokens that came to API processes."),
    "prompt_tokens_cached_total": _Family("counter", "Prompt tokens of ended requests that were found in the prefix index."),
    "request_time_per_output_token_seconds": _Family("histogram", "Between the tokens of an ended request, on average."),
    "e2e_request_latency_seconds": _Family("histogram", "From the submit of a request to its end."),
    "request_decode_time_seconds": _Family("histogram", "From the first token of an ended request to its last."),
    "request_prompt_tokens": _Family("histogram", "Prompt tokens of an ended request."),
    "request_generation_tokens": _Family("histogram", "Output tokens of an ended request."),
    "request_max_generation_tokens": _Family("histogram", "Output tokens of the longest choice of an ended request."),
    "request_params_max_tokens": _Family("histogram", "The max_tokens of an ended request that named it."),
    "request_params_n": _Family("histogram", "Choices that an ended request asked for."),
}


def render(
    state: EngineState,
    *,
    is_ready: bool,
    vllm_model_name: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The whole exposition, each line ended by a line feed; with a model's name vLLM's names come first.

    `settings` are the server's, of which vLLM's names tell some.
    """
    sums = {} if state.silent else _summed(state)
    gauges = _scheduler_gauges(state)
    lines = [] if vllm_model_name is None else list(vllm_lines(_in_order(sums), gauges, vllm_model_name, settings))
    lines += _family_lines("engine_ready", _Family("gauge", "1 while the engine takes requests."), [("", float(is_ready))])
    lines += _family_lines(
        "processes_silent",
        _Family("gauge", "Processes that did not answer; while there are any, sums over all processes are left out."),
        [("", float(len(state.silent)))],
    )
    lines += _gauge_lines(state, gauges)
    lines += _sample_lines(sums)
    return "".join(f"{line}\n" for line in lines)


def _scheduler_gauges(state: EngineState) -> Mapping[str, int]:
    return next((dict(report.gauges) for report in state.reports if report.role is Role.SCHEDULER), {})


def _in_order(sums: Mapping[str, float]) -> Mapping[str, float]:
    return {sample: sums[sample] for sample in sorted(sums, key=_place)}


def _gauge_lines(state: EngineState, gauges: Mapping[str, int]) -> Iterable[str]:
    for name, (gauge, text) in _GAUGES.items():
        if gauge in gauges:
            yield from _family_lines(name, _Family("gauge", text), [("", float(gauges[gauge]))])
    opened = [
        (f'{{role="{report.role.value}",index="{report.index}"}}', float(report.open_requests)) for report in state.reports
    ]
    if opened:
        yield from _family_lines("open_requests", _Family("gauge", "Requests that a process holds."), opened)


def _family_lines(name: str, family: _Family, samples: Iterable[tuple[str, float]]) -> Iterable[str]:
    yield f"# HELP {PREFIX}{name} {family.text}"
    yield f"# TYPE {PREFIX}{name} {family.kind}"
    for labels, value in samples:
        yield f"{PREFIX}{name}{labels} {number(value)}"


def _summed(state: EngineState) -> Mapping[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for report in state.reports:
        for name, value in report.samples:
            sums[name] += value
    return sums


def _sample_lines(sums: Mapping[str, float]) -> Iterable[str]:
    families: defaultdict[str, list[str]] = defaultdict(list)
    for sample in sums:
        families[_family_name(sample)].append(sample)
    for name in sorted(families):
        family = _family(name)
        yield f"# HELP {name} {family.text}"
        yield f"# TYPE {name} {family.kind}"
        for sample in sorted(families[name], key=_place):
            yield f"{sample} {number(sums[sample])}"


def _family_name(sample: str) -> str:
    """The sample's name without labels, and for parts of a histogram without the part's suffix."""
    name = sample.partition("{")[0]
    for part in _HISTOGRAM_PARTS:
        stem = name.removesuffix(part)
        if stem != name and (part == "_bucket" or _family(stem).kind == "histogram"):
            return stem
    return name


def _family(name: str) -> _Family:
    known = _KNOWN.get(name.removeprefix(PREFIX))
    if known is not None:
        return known
    return _Family("counter" if name.endswith("_total") else "untyped", name.removeprefix(PREFIX).replace("_", " ") + ".")


def _place(sample: str) -> tuple[str, str, float]:
    """Sorts the buckets of one label set by their bound, in front of its sum and count."""
    name, _, labels = sample.partition("{")
    others = _BUCKET_BOUND.sub("", labels).strip(",}")
    bound = _BUCKET_BOUND.search(labels)
    if bound is None:
        return (others, name, math.inf)
    return (others, "", math.inf if bound[1] == "+Inf" else float(bound[1]))
