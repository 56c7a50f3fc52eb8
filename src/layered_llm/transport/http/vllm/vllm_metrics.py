"""The figures that vLLM has too, under vLLM's names, for dashboards and tools that know those.

Must not know: HTTP, how a figure is counted, our own names' help texts.

Source of the names, labels and meanings: vLLM's metrics of the V1 engine, as its Grafana dashboard queries them. Two names that
it has given up are kept, since older dashboards ask for them: `gpu_cache_usage_perc` and `time_per_output_token_seconds`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from layered_llm.domain.metrics import Measured, Metric, Samples

PREFIX: Final = "vllm:"
_ENGINE: Final = "0"
_FINISHED: Final[Mapping[str, str]] = {"tool_calls": "stop"}
"""Finish reasons that vLLM does not tell apart."""


_CACHE_FACTS: Final[Mapping[str, str]] = {
    "block_size": "page_size",
    "cache_dtype": "kv_dtype",
    "enable_prefix_caching": "prefix_caching",
    "gpu_memory_utilization": "memory_ratio",
}
"""vLLM's names of what it says of the cache, and our settings."""


_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "prompt_tokens_total": ("prompt_tokens_total", "Prefill tokens of accepted requests."),
    "generation_tokens_total": ("generation_tokens_emitted_total", "Generation tokens."),
    "prompt_tokens_cached_total": ("prompt_tokens_cached_total", "Prompt tokens found in the cache."),
    "prefix_cache_queries_total": ("prefix_cache_lookup_tokens_total", "Tokens looked up in the cache."),
    "prefix_cache_hits_total": ("prefix_cache_hit_tokens_total", "Tokens found in the cache."),
    "num_preemptions_total": ("preemptions_total", "Preemptions by the scheduler."),
    "request_success_total": ("choices_finished_total", "Ended choices by finish reason."),
    "time_to_first_token_seconds": ("time_to_first_token_seconds", "Time to first token."),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "Time between tokens."),
    "time_per_output_token_seconds": ("inter_token_latency_seconds", "The same, by its old name."),
    "request_time_per_output_token_seconds": (
        "request_time_per_output_token_seconds",
        "Mean time between the tokens of a request.",
    ),
    "e2e_request_latency_seconds": ("e2e_request_latency_seconds", "Time from a request to its end."),
    "request_queue_time_seconds": ("queue_time_seconds", "Time in the queue."),
    "request_prefill_time_seconds": ("request_prefill_time_seconds", "Time from start to first token."),
    "request_decode_time_seconds": ("request_decode_time_seconds", "Time from first to last token."),
    "request_prompt_tokens": ("request_prompt_tokens", "Prompt tokens of ended requests."),
    "request_generation_tokens": ("request_generation_tokens", "Output tokens of ended requests."),
    "request_max_num_generation_tokens": (
        "request_max_generation_tokens",
        "Output tokens of the longest choice of ended requests.",
    ),
    "request_params_n": ("request_params_n", "The n of requests."),
    "request_params_max_tokens": ("request_params_max_tokens", "The max_tokens of requests."),
    "request_inference_time_seconds": ("request_inference_time_seconds", "Time from start to end."),
    "request_num_preemptions": ("request_preemptions", "Preemptions of ended requests."),
    "iteration_tokens_total": ("step_new_tokens", "Tokens of a step: new ones of prompts, and sampled ones."),
}
"""vLLM's names, ours, and what vLLM says of them; their kinds are the same."""


def vllm_metrics(
    sums: Iterable[Measured], gauges: Mapping[str, int], model_name: str, settings: Mapping[str, Any]
) -> Iterator[Measured]:
    """Under vLLM's names and labels.

    Args:
        sums: our own metrics, summed over all processes.
        gauges: the scheduler's own.
        settings: the server's, by our names.
    """
    labels = f'model_name="{escaped(model_name)}",engine="{_ENGINE}"'
    if gauges.get("pages_total"):
        yield from _gauges(gauges, settings, labels)
    ours = {each.metric.name: each for each in sums}
    for name, (source, text) in _NAMES.items():
        if source in ours:
            yield Measured(Metric(name, ours[source].metric.kind, text), _relabelled(ours[source].samples, labels))


def escaped(value: str) -> str:
    """A label's value as the text format has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _gauges(gauges: Mapping[str, int], settings: Mapping[str, Any], labels: str) -> Iterator[Measured]:
    """Facts are labels of a gauge that is always 1, as Prometheus has it for what is no number."""
    used = gauges["pages_used"] / gauges["pages_total"]
    facts = {name: settings[ours] for name, ours in _CACHE_FACTS.items() if settings.get(ours) is not None}
    facts |= {"num_gpu_blocks": gauges["pages_total"]}
    cache_labels = ",".join((labels, *(f'{name}="{escaped(str(value))}"' for name, value in facts.items())))
    for name, value, text, own in (
        ("num_requests_running", gauges["running"], "Choices that run.", labels),
        ("num_requests_waiting", gauges["waiting"], "Choices that wait.", labels),
        ("kv_cache_usage_perc", used, "Part of the KV cache that is in use; 1 is all of it.", labels),
        ("gpu_cache_usage_perc", used, "The same, by its old name.", labels),
        ("cache_config_info", 1, "The KV cache as it is.", cache_labels),
    ):
        yield Measured(Metric(name, "gauge", text), ((f"{{{own}}}", float(value)),))


def _relabelled(samples: Samples, labels: str) -> Samples:
    """Where vLLM does not tell two finish reasons apart, the sum of both."""
    merged: dict[str, float] = {}
    for sample, value in samples:
        part, _, own = sample.partition("{")
        theirs = f"{part}{{{','.join(filter(None, (labels, _theirs(own))))}}}"
        merged[theirs] = merged.get(theirs, 0.0) + value
    return tuple(merged.items())


def _theirs(own: str) -> str:
    """Our labels after the opening brace, as vLLM has them, without the closing one."""
    label, _, value = own.removesuffix("}").partition("=")
    if label != "reason":
        return own.removesuffix("}")
    reason = value.strip('"')
    return f'finished_reason="{_FINISHED.get(reason, reason)}"'
