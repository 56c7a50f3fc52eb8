"""The figures that vLLM has too, under vLLM's names, for dashboards and tools that know those.

Must not know: HTTP, how a figure is counted, our own names' help texts.

Source of the names, labels and meanings: vLLM's metrics of the V1 engine, as its Grafana dashboard queries them. Two names that
it has given up are kept, since older dashboards ask for them: `gpu_cache_usage_perc` and `time_per_output_token_seconds`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

PREFIX: Final = "vllm:"
_OURS: Final = "layered_llm_"
_ENGINE: Final = "0"
_FINISHED: Final[Mapping[str, str]] = {"tool_calls": "stop"}
"""Finish reasons that vLLM does not tell apart."""


_CACHE_FACTS: Final[Mapping[str, str]] = {
    "block_size": "page_size",
    "cache_dtype": "kv_dtype",
    "enable_prefix_caching": "prefix_caching",
    "gpu_memory_utilization": "memory_ratio",
}
"""vLLM's names of what it tells of the cache, and our settings."""


@attrs.frozen
class _Source:
    kind: str
    ours: str
    """Name without prefix."""
    text: str


_SOURCES: Final[Mapping[str, _Source]] = {
    "prompt_tokens_total": _Source("counter", "prompt_tokens_total", "Prefill tokens of accepted requests."),
    "generation_tokens_total": _Source("counter", "generation_tokens_emitted_total", "Generation tokens."),
    "prompt_tokens_cached_total": _Source("counter", "prompt_tokens_cached_total", "Prompt tokens found in the cache."),
    "prefix_cache_queries_total": _Source("counter", "prefix_cache_lookup_tokens_total", "Tokens looked up in the cache."),
    "prefix_cache_hits_total": _Source("counter", "prefix_cache_hit_tokens_total", "Tokens found in the cache."),
    "num_preemptions_total": _Source("counter", "preemptions_total", "Preemptions by the scheduler."),
    "request_success_total": _Source("counter", "choices_finished_total", "Ended choices by finish reason."),
    "time_to_first_token_seconds": _Source("histogram", "time_to_first_token_seconds", "Time to first token."),
    "inter_token_latency_seconds": _Source("histogram", "inter_token_latency_seconds", "Time between tokens."),
    "time_per_output_token_seconds": _Source("histogram", "inter_token_latency_seconds", "The same, by its old name."),
    "request_time_per_output_token_seconds": _Source(
        "histogram", "request_time_per_output_token_seconds", "Mean time between the tokens of a request."
    ),
    "e2e_request_latency_seconds": _Source("histogram", "e2e_request_latency_seconds", "Time from a request to its end."),
    "request_queue_time_seconds": _Source("histogram", "queue_time_seconds", "Time in the queue."),
    "request_prefill_time_seconds": _Source("histogram", "request_prefill_time_seconds", "Time from start to first token."),
    "request_decode_time_seconds": _Source("histogram", "request_decode_time_seconds", "Time from first to last token."),
    "request_prompt_tokens": _Source("histogram", "request_prompt_tokens", "Prompt tokens of ended requests."),
    "request_generation_tokens": _Source("histogram", "request_generation_tokens", "Output tokens of ended requests."),
    "request_max_num_generation_tokens": _Source(
        "histogram", "request_max_generation_tokens", "Output tokens of the longest choice of ended requests."
    ),
    "request_params_n": _Source("histogram", "request_params_n", "The n of requests."),
    "request_params_max_tokens": _Source("histogram", "request_params_max_tokens", "The max_tokens of requests."),
    "request_inference_time_seconds": _Source("histogram", "request_inference_time_seconds", "Time from start to end."),
    "request_num_preemptions": _Source("histogram", "request_preemptions", "Preemptions of ended requests."),
    "iteration_tokens_total": _Source(
        "histogram", "step_new_tokens", "Tokens of a step: new ones of prompts, and sampled ones."
    ),
}


def vllm_lines(
    sums: Mapping[str, float], gauges: Mapping[str, int], model_name: str, settings: Mapping[str, Any]
) -> Iterator[str]:
    """Lines of the exposition.

    Args:
        sums: our own samples by their full names, summed over all processes; the buckets of a histogram in order.
        gauges: the scheduler's own.
        settings: the server's, by our names.
    """
    labels = f'model_name="{escaped(model_name)}",engine="{_ENGINE}"'
    yield from _gauge_lines(gauges, labels)
    yield from _cache_lines(gauges, settings, labels)
    for name, source in _SOURCES.items():
        samples = list(_relabelled(sums, name, source, labels))
        if samples:
            yield from _headed(name, source.kind, source.text, samples)


def escaped(value: str) -> str:
    """A label's value as the text format has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def number(value: float) -> str:
    """A sample's value as the text format has it."""
    return str(int(value)) if value.is_integer() else repr(value)


def _gauge_lines(gauges: Mapping[str, int], labels: str) -> Iterator[str]:
    if not gauges.get("pages_total"):
        return
    used = gauges["pages_used"] / gauges["pages_total"]
    values = {
        "num_requests_running": (float(gauges["running"]), "Choices that run."),
        "num_requests_waiting": (float(gauges["waiting"]), "Choices that wait."),
        "kv_cache_usage_perc": (used, "Part of the KV cache that is in use; 1 is all of it."),
        "gpu_cache_usage_perc": (used, "The same, by its old name."),
    }
    for name, (value, text) in values.items():
        yield from _headed(name, "gauge", text, [f"{PREFIX}{name}{{{labels}}} {number(value)}"])


def _cache_lines(gauges: Mapping[str, int], settings: Mapping[str, Any], labels: str) -> Iterator[str]:
    """Facts as labels of a gauge that is always 1, as Prometheus has it for what is no number."""
    if not gauges.get("pages_total"):
        return
    facts = {name: settings[ours] for name, ours in _CACHE_FACTS.items() if settings.get(ours) is not None}
    facts |= {"num_gpu_blocks": gauges["pages_total"]}
    told = ",".join((labels, *(f'{name}="{escaped(str(value))}"' for name, value in facts.items())))
    yield from _headed("cache_config_info", "gauge", "The KV cache as it is.", [f"{PREFIX}cache_config_info{{{told}}} 1"])


def _headed(name: str, kind: str, text: str, samples: list[str]) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {text}"
    yield f"# TYPE {PREFIX}{name} {kind}"
    yield from samples


def _relabelled(sums: Mapping[str, float], name: str, source: _Source, labels: str) -> Iterator[str]:
    merged: dict[str, float] = {}
    parts = ("_bucket", "_sum", "_count") if source.kind == "histogram" else ("",)
    for part in parts:
        for sample, value in sums.items():
            stem, _, own = sample.partition("{")
            if stem == f"{_OURS}{source.ours}{part}":
                full = f"{PREFIX}{name}{part}{{{','.join(filter(None, (labels, _theirs(own))))}}}"
                merged[full] = merged.get(full, 0.0) + value
    return (f"{sample} {number(value)}" for sample, value in merged.items())


def _theirs(own: str) -> str:
    """Our labels behind the opening brace, as vLLM has them, without the closing one."""
    label, _, value = own.removesuffix("}").partition("=")
    if label != "reason":
        return own.removesuffix("}")
    reason = value.strip('"')
    return f'finished_reason="{_FINISHED.get(reason, reason)}"'
