"""Hypothesis strategies that build any valid message of any link."""

from array import array
from collections.abc import Mapping
from typing import Any

import attrs
from hypothesis import strategies as st

from layered_llm.domain.columns import pack_f32, pack_i8, pack_i32
from layered_llm.domain.finish import AbortReason, FinishReason
from layered_llm.domain.ids import StepId
from layered_llm.domain.limits import EngineLimits, RuntimeLimits
from layered_llm.domain.messages import api_text, scheduler_runtime, supervision, text_scheduler
from layered_llm.domain.messages.logprobs import LogprobColumns, PromptLogprobs
from layered_llm.domain.messages.prompts import ChatMessage, Prompt, Rendering, ToolCall
from layered_llm.domain.metrics import Measured, Metric
from layered_llm.domain.placement import Placement
from layered_llm.domain.sampling import SamplingParams
from layered_llm.domain.verdicts import RefuseReason, RejectReason

_BITS = {"b": 8, "i": 32, "q": 64}
_MAX_ROWS = 4

ids = st.integers(0, (1 << 62) - 1)
counts = st.integers(0, (1 << 31) - 1)
texts = st.text(max_size=20)
messages_of_people = st.one_of(st.none(), texts)


@st.composite
def columns(draw: st.DrawFn, /, rows: int | None = None, **codes: str) -> dict[str, Any]:
    """Packed columns of equally many rows, by name."""
    size = draw(st.integers(0, _MAX_ROWS)) if rows is None else rows
    return {name: draw(column(code, rows=size)) for name, code in codes.items()}


def column(code: str, *, rows: int | None = None, min_rows: int = 0) -> st.SearchStrategy[bytes]:
    low, high = (min_rows, _MAX_ROWS) if rows is None else (rows, rows)
    values = st.lists(_item(code), min_size=low, max_size=high)
    return values.map(lambda numbers: array(code, numbers).tobytes())


def _item(code: str) -> st.SearchStrategy[int] | st.SearchStrategy[float]:
    if code == "f":
        return st.floats(width=32)
    half = 1 << (_BITS[code] - 1)
    return st.integers(-half, half - 1)


prompts = st.one_of(
    st.builds(Prompt.of_text, texts),
    st.builds(Prompt.of_token_ids, st.lists(counts, max_size=_MAX_ROWS)),
    st.builds(
        Prompt.of_chat,
        st.lists(
            st.builds(
                ChatMessage,
                role=texts,
                content=messages_of_people,
                name=messages_of_people,
                reasoning=messages_of_people,
                tool_calls=st.lists(st.builds(ToolCall, name=texts, arguments=texts, id=messages_of_people), max_size=2).map(
                    tuple
                ),
                tool_call_id=messages_of_people,
            ),
            min_size=1,
            max_size=_MAX_ROWS,
        ),
        st.builds(Rendering, add_generation_prompt=st.booleans(), variables=messages_of_people),
    ),
    st.builds(
        Prompt,
        text=texts,
        add_special_tokens=st.none() | st.booleans(),
        keep_last_tokens=st.sampled_from([None, -1, 5]),
        keeps_beginning=st.booleans(),
    ),
)
seeds = st.integers(-(1 << 63), (1 << 63) - 1)
sampling_params = st.builds(
    SamplingParams,
    max_tokens=st.one_of(st.none(), st.integers(100, (1 << 31) - 1)),
    min_tokens=st.integers(0, 100),
    n=st.integers(1, 128),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    top_k=st.none() | counts,
    min_p=st.none() | st.floats(0, 1),
    repetition_penalty=st.none() | st.floats(0, 1000, exclude_min=True),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logprobs=st.one_of(st.none(), st.integers(0, 20)),
    prompt_logprobs=st.one_of(st.none(), st.integers(0, 20)),
    echo=st.booleans(),
    tells_prompt_ids=st.booleans(),
    top_n_sigma=st.floats(0, 1000),
    allowed_token_ids=st.none() | st.lists(counts, min_size=1, max_size=3).map(tuple),
    bad_words=st.lists(st.text(min_size=1, max_size=10), max_size=3).map(tuple),
    logit_bias=st.dictionaries(counts, st.floats(-100, 100), max_size=3),
    seed=seeds,
    stop=st.lists(st.text(min_size=1, max_size=10), max_size=3).map(tuple),
    stop_token_ids=st.lists(counts, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
)
biases = st.integers(0, _MAX_ROWS).flatmap(lambda rows: columns(rows, biased_ids="i", biases="f"))
placements = st.builds(
    Placement, cache_salt=st.none() | st.text(min_size=1, max_size=9), priority=st.integers(-9, 9), tenant=texts
)
token_sampling = st.builds(
    lambda biases, **fields: text_scheduler.TokenSampling(**biases, **fields),
    biases,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=counts,
    seed=seeds,
    min_tokens=counts,
    end_ids=st.lists(counts, max_size=3).map(tuple),
    missing_ranges=column("i"),
    min_p=st.floats(0, 1),
    top_n_sigma=st.floats(0, 1000),
    allowed_ids=column("i"),
    bad_words=st.lists(column("i", min_rows=1), max_size=3).map(tuple),
    repetition_penalty=st.floats(0, 1000, exclude_min=True),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logprobs=st.one_of(st.none(), st.integers(0, 20)),
    prompt_logprobs=st.one_of(st.none(), st.integers(0, 20)),
)
engine_limits = st.builds(EngineLimits, context_tokens=counts, vocabulary_size=counts)
runtime_limits = st.builds(
    RuntimeLimits, pages=counts, page_size_tokens=counts, slots=counts, context_tokens=counts, vocabulary_size=counts
)
roles = st.sampled_from(supervision.Role)
named_numbers = st.lists(st.tuples(texts, ids), max_size=3).map(tuple)
samples = st.lists(st.tuples(texts, st.floats(allow_nan=False)), max_size=3).map(tuple)
abort_tallies = st.builds(supervision.AbortTally, peer=roles, index=ids, aborts=ids)
state_reports = st.builds(
    supervision.StateReport,
    query=ids,
    role=roles,
    index=counts,
    pid=counts,
    open_requests=counts,
    maps=named_numbers,
    gauges=named_numbers,
    metrics=st.lists(st.builds(Measured, st.builds(Metric, texts, texts, texts), samples), max_size=2).map(tuple),
    violations=st.lists(texts, max_size=2).map(tuple),
    aborts_sent=st.lists(abort_tallies, max_size=2).map(tuple),
    aborts_taken=st.lists(abort_tallies, max_size=2).map(tuple),
)


@st.composite
def logprobs(draw: st.DrawFn, token_count: int) -> LogprobColumns | None:
    sizes = [draw(st.integers(0, 3)) for _ in range(token_count)]
    if draw(st.booleans()):
        return None
    values = draw(st.lists(st.floats(max_value=0, width=32), min_size=sum(sizes), max_size=sum(sizes)))
    token_ids = draw(column("i", rows=sum(sizes)))
    ranks = pack_i32(draw(st.lists(counts, min_size=len(sizes), max_size=len(sizes)))) if draw(st.booleans()) else b""
    return LogprobColumns(counts=pack_i32(sizes), token_ids=token_ids, logprobs=pack_f32(values), ranks=ranks)


@st.composite
def prompt_logprobs(draw: st.DrawFn, row_count: int) -> PromptLogprobs | None:
    sizes = [draw(st.integers(0, 2)) for _ in range(row_count)]
    columns = draw(logprobs(sum(sizes)))
    return None if columns is None else PromptLogprobs(token_counts=pack_i32(sizes), columns=columns)


def names(columns: LogprobColumns | None) -> st.SearchStrategy[tuple[bytes, ...]]:
    count = 0 if columns is None else len(columns.token_ids) // 4
    return st.lists(st.binary(max_size=4), min_size=count, max_size=count).map(tuple)


@st.composite
def text_emitted(draw: st.DrawFn) -> api_text.TextEmitted:
    rows, ended_rows = draw(st.integers(0, _MAX_ROWS)), draw(st.integers(0, _MAX_ROWS))
    stops = st.one_of(st.none(), texts, counts)
    token_ids = draw(column("i"))
    told = draw(logprobs(len(token_ids) // 4))
    prompts = draw(prompt_logprobs(rows))
    return api_text.TextEmitted(
        **draw(columns(rows, requests="q", choices="i", token_counts="i", finish_reasons="b")),
        texts=tuple(draw(st.lists(texts, min_size=rows, max_size=rows))),
        token_ids=token_ids,
        matched_stops=tuple(draw(st.lists(stops, min_size=rows, max_size=rows))),
        **draw(columns(ended_rows, ended="q", ended_prompt_tokens="i", ended_completion_tokens="i", ended_cached_tokens="i")),
        ended_errors=tuple(draw(st.lists(messages_of_people, min_size=ended_rows, max_size=ended_rows))),
        incarnation=draw(counts),
        logprobs=told,
        logprob_tokens=draw(names(told)),
        text_offsets=b"" if told is None else bytes(4 * told.row_count),
        prompt_logprobs=prompts,
        prompt_logprob_tokens=draw(names(None if prompts is None else prompts.columns)),
        prompt_text_offsets=b"" if prompts is None else bytes(4 * prompts.columns.row_count),
    )


@st.composite
def execute_steps(draw: st.DrawFn) -> scheduler_runtime.ExecuteStep:
    opened = st.builds(
        scheduler_runtime.OpenSlot,
        slot=counts,
        choice=counts,
        prompt_ids=column("i"),
        output_ids=column("i"),
        sampling=token_sampling,
    )
    return scheduler_runtime.ExecuteStep(
        step=StepId(draw(ids)),
        retired=draw(column("i")),
        opened=tuple(draw(st.lists(opened, max_size=2))),
        **draw(columns(page_slots="i", page_counts="i", page_offsets="i")),
        page_ids=draw(column("i")),
        **draw(columns(slots="i", starts="i", counts="i", samples="b")),
    )


@st.composite
def tokens_emitted(draw: st.DrawFn) -> text_scheduler.TokensEmitted:
    table = draw(columns(requests="q", choices="i", positions="i", token_ids="i", cached_tokens="i"))
    told = draw(logprobs(len(table["token_ids"]) // 4))
    prompts = draw(prompt_logprobs(len(table["token_ids"]) // 4))
    return text_scheduler.TokensEmitted(step=StepId(draw(ids)), logprobs=told, prompt_logprobs=prompts, **table)


@st.composite
def steps_completed(draw: st.DrawFn) -> scheduler_runtime.StepCompleted:
    token_ids = draw(column("i"))
    failed = draw(st.lists(counts, max_size=2))
    return scheduler_runtime.StepCompleted(
        step=StepId(draw(ids)),
        token_ids=token_ids,
        device_us=draw(counts),
        open_slots=draw(counts),
        logprobs=draw(logprobs(len(token_ids) // 4)),
        prompt_logprobs=draw(prompt_logprobs(draw(st.integers(0, 2)))),
        failed_rows=pack_i32(failed),
        failures=pack_i8([FinishReason.ERROR] * len(failed)),
    )


MESSAGES: Mapping[type[attrs.AttrsInstance], st.SearchStrategy[attrs.AttrsInstance]] = {
    api_text.Submit: st.builds(
        lambda output_ids, params, **fields: api_text.Submit(params=params, output_ids=output_ids * params.n, **fields),
        output_ids=st.just(()) | st.tuples(column("i")),
        request=ids,
        prompt=prompts,
        params=sampling_params,
        seed=seeds,
        placement=placements,
        incarnation=counts,
    ),
    api_text.Abort: st.builds(api_text.Abort, request=ids, reason=st.sampled_from(AbortReason), incarnation=counts),
    api_text.Accepted: st.builds(
        api_text.Accepted, request=ids, prompt_tokens=counts, prompt_ids=column("i"), incarnation=counts
    ),
    api_text.Rejected: st.builds(
        api_text.Rejected, request=ids, reason=st.sampled_from(RejectReason), message=texts, param=messages_of_people
    ),
    api_text.Tokenize: st.builds(api_text.Tokenize, request=ids, prompt=prompts, with_spellings=st.booleans()),
    api_text.Detokenize: st.builds(api_text.Detokenize, request=ids, token_ids=column("i"), skip_special_tokens=st.booleans()),
    api_text.DescribeTokenizer: st.builds(api_text.DescribeTokenizer, request=ids),
    api_text.Tokenized: st.builds(
        api_text.Tokenized,
        request=ids,
        token_ids=column("i"),
        spellings=st.one_of(st.none(), st.lists(texts, max_size=3).map(tuple)),
    ),
    api_text.Detokenized: st.builds(api_text.Detokenized, request=ids, text=texts),
    api_text.TokenizerDescribed: st.builds(api_text.TokenizerDescribed, request=ids, config=texts),
    api_text.TextEmitted: text_emitted(),
    text_scheduler.Admit: st.builds(
        text_scheduler.Admit,
        request=ids,
        choices=st.just(2),
        prompt_ids=column("i", min_rows=1),
        max_tokens=st.integers(1 << 20, 1 << 30),
        sampling=token_sampling,
        placement=placements,
        output_ids=st.just(()) | st.tuples(column("i"), column("i")),
    ),
    text_scheduler.AbortRequest: st.builds(text_scheduler.AbortRequest, request=ids, reason=st.sampled_from(AbortReason)),
    text_scheduler.StopChoice: st.builds(text_scheduler.StopChoice, request=ids, choice=counts, output_tokens=counts),
    text_scheduler.StepsTaken: st.builds(text_scheduler.StepsTaken, step=ids),
    text_scheduler.Queued: st.builds(text_scheduler.Queued, request=ids),
    text_scheduler.Refused: st.builds(
        text_scheduler.Refused, request=ids, reason=st.sampled_from(RefuseReason), limit=counts, actual=counts
    ),
    text_scheduler.TokensEmitted: tokens_emitted(),
    text_scheduler.RequestsFinished: columns(requests="q", choices="i", reasons="b", output_tokens="i").map(
        lambda table: text_scheduler.RequestsFinished(**table)
    ),
    scheduler_runtime.ExecuteStep: execute_steps(),
    scheduler_runtime.RuntimeWarmingUp: st.builds(scheduler_runtime.RuntimeWarmingUp),
    scheduler_runtime.RuntimeReady: st.builds(scheduler_runtime.RuntimeReady, limits=runtime_limits, pid=counts),
    scheduler_runtime.StepCompleted: steps_completed(),
    scheduler_runtime.StepFailed: st.builds(scheduler_runtime.StepFailed, step=ids, message=texts),
    supervision.ProcessReady: st.builds(
        supervision.ProcessReady, role=roles, index=counts, limits=st.one_of(st.none(), engine_limits)
    ),
    supervision.ApiHello: st.builds(supervision.ApiHello, api=ids, pid=st.integers(1, supervision.PID_LIMIT - 1)),
    supervision.ApiGoodbye: st.builds(supervision.ApiGoodbye, api=ids),
    supervision.EngineStatus: st.builds(
        supervision.EngineStatus,
        still_serving=st.lists(counts, max_size=2).map(tuple),
        phase=st.sampled_from(supervision.EnginePhase),
        generation=counts,
        supervisor_pid=counts,
        detail=texts,
        text_addresses=st.lists(texts, max_size=3).map(tuple),
        limits=st.one_of(st.none(), engine_limits),
        stalled=st.lists(texts, max_size=3).map(tuple),
    ),
    supervision.Heartbeat: st.builds(supervision.Heartbeat, role=roles, index=counts),
    supervision.EngineSized: st.builds(supervision.EngineSized, limits=engine_limits),
    supervision.ApiDied: st.builds(supervision.ApiDied, api=ids),
    supervision.Stop: st.builds(supervision.Stop),
    supervision.StateQuery: st.builds(supervision.StateQuery, query=ids),
    supervision.StateReport: state_reports,
    supervision.AbortByName: st.builds(
        supervision.AbortByName,
        query=ids,
        request=st.none() | ids,
        tenant=st.text(),
        names=st.lists(texts, max_size=2).map(tuple),
    ),
    supervision.RequestsAborted: st.builds(supervision.RequestsAborted, query=ids, count=counts),
    supervision.FindRequest: st.builds(
        supervision.FindRequest,
        query=ids,
        request=st.none() | ids,
        names=st.lists(st.text(), max_size=2).map(tuple),
        tenant=st.none() | st.text(),
    ),
    supervision.RequestFound: st.builds(
        supervision.RequestFound,
        query=ids,
        fate=st.none()
        | st.builds(supervision.RequestFate, is_open=st.booleans(), reason=st.text(), error=st.none() | st.text()),
    ),
    supervision.EngineState: st.builds(
        supervision.EngineState,
        query=ids,
        reports=st.lists(state_reports, max_size=2).map(tuple),
        silent=st.lists(texts, max_size=2).map(tuple),
    ),
}
