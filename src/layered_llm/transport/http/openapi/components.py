"""The response bodies as JSON Schemas, by the names that the document's components have.

Must not know: how a response is made.

`tests/transport/http/test_http_openapi.py` validates responses against them.
"""

from collections.abc import Mapping
from typing import Final

from layered_llm.transport.http.exchange.json_schema import (
    Json,
    array,
    boolean,
    described,
    either,
    integer,
    nullable,
    number,
    one_of,
    record,
    ref,
    string,
)

_COUNT: Final = integer(0)
_LOGPROB: Final = number(high=0)
_STOP_REASON: Final = {"type": ["string", "integer", "null"]}
_FINISH_REASON: Final = one_of("stop", "length", "tool_calls")
_FREE: Final = {"type": "object"}

_ERROR: Final = record(
    error=record(
        message=string(),
        type=string(),
        param=described(nullable(string()), "The member of the body that is at fault."),
        code=nullable(string()),
    )
)
_USAGE: Final = record(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=record(cached_tokens=_COUNT),
    completion_tokens_details=record(reasoning_tokens=_COUNT),
)
_TOKEN_LOGPROB: Final = record(token=string(), logprob=_LOGPROB, bytes=array(integer(0, 255)))
_CHAT_LOGPROBS: Final = record(
    content=array({"allOf": [_TOKEN_LOGPROB, record(top_logprobs=array(_TOKEN_LOGPROB))]}), refusal={"type": "null"}
)
_COMPLETION_LOGPROBS: Final = record(
    text_offset=array(_COUNT),
    token_logprobs=array(nullable(_LOGPROB)),
    tokens=array(string()),
    top_logprobs=array(nullable({"type": "object", "additionalProperties": _LOGPROB})),
)
_PROMPT_LOGPROBS: Final = array(
    nullable(
        {"type": "object", "additionalProperties": record(logprob=_LOGPROB, rank=nullable(integer(1)), decoded_token=string())}
    )
)

_TOKEN_IDS: Final = array(_COUNT)
_OF_PROMPT: Final = {"prompt_logprobs": _PROMPT_LOGPROBS, "prompt_token_ids": _TOKEN_IDS}
"""Where they are asked for: in each choice of a completion, and beside those of a chat."""


def _choice(logprobs: Mapping[str, object], **content: Json) -> Json:
    members = {
        "index": _COUNT,
        **content,
        "logprobs": nullable(logprobs),
        "finish_reason": _FINISH_REASON,
        "stop_reason": described(_STOP_REASON, "The stop string or stop token id that ended the choice."),
        "token_ids": described(_TOKEN_IDS, "Where return_token_ids asks for them, and then of the prompt too."),
        **_OF_PROMPT,
    }
    return record(**members, optional=("token_ids", *_OF_PROMPT))


def _response(kind: str, choice: Json, **more: Json) -> Json:
    members = {
        "id": string(),
        "object": one_of(kind),
        "created": integer(),
        "model": string(),
        "choices": array(choice, fewest=1),
        "usage": ref("Usage"),
        "system_fingerprint": string(),
        **more,
    }
    return record(**members, optional=tuple(more))


_CHAT_MESSAGE: Final = record(role=one_of("assistant"), content=nullable(string()), refusal=nullable(string()))
_MODEL: Final = record(
    id=string(),
    object=one_of("model"),
    created=integer(),
    owned_by=string(),
    root=string(),
    parent=nullable(string()),
    max_model_len=described(nullable(integer(1)), "The context in tokens; null until the model is loaded."),
)
_PAGES: Final = record(optional=(), **dict.fromkeys(("pages_total", "pages_free", "pages_cached", "pages_used"), _COUNT))
_STATE: Final = record(
    api=array(_FREE),
    text=array(_FREE),
    scheduler=nullable(_FREE),
    runtime=array(_FREE),
    silent=array(string()),
    violations=array(string()),
    quiescent=boolean(),
)

_NATIVE_LOGPROBS: Final = array(array({"type": ["number", "integer", "string", "null"]}, 3, 3))
_NATIVE_TOP: Final = array({"anyOf": [_NATIVE_LOGPROBS, {"type": "null"}]})
_GENERATED: Final = record(
    text=string(),
    output_ids=array(_COUNT),
    meta_info=record(
        id=string(),
        finish_reason=nullable(
            record(
                type=one_of("stop", "length", "abort"),
                length=_COUNT,
                matched=_STOP_REASON,
                message=string(),
                optional=("length", "matched", "message"),
            )
        ),
        matched_stop=_STOP_REASON,
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        cached_tokens=_COUNT,
        output_token_logprobs=described(_NATIVE_LOGPROBS, "Of each token: logarithm, id, text."),
        output_top_logprobs=_NATIVE_TOP,
        input_token_logprobs=_NATIVE_LOGPROBS,
        input_top_logprobs=_NATIVE_TOP,
        optional=("output_token_logprobs", "output_top_logprobs", "input_token_logprobs", "input_top_logprobs"),
    ),
)

COMPONENTS: Final[Mapping[str, Json]] = {
    "Error": _ERROR,
    "Event": record(data=described(string(), "A JSON object; of the last event [DONE].")),
    "Usage": _USAGE,
    "ChatCompletion": _response("chat.completion", _choice(_CHAT_LOGPROBS, message=_CHAT_MESSAGE), **_OF_PROMPT),
    "Completion": _response("text_completion", _choice(_COMPLETION_LOGPROBS, text=string())),
    "Model": _MODEL,
    "ModelList": record(object=one_of("list"), data=array(ref("Model"))),
    "Health": record(status=one_of("ok")),
    "Unavailable": record(status=one_of("unavailable"), phase=string(), detail=string()),
    "Pages": _PAGES,
    "State": _STATE,
    "Aborted": described(record(aborted=_COUNT), "How many requests were open, and are not any more."),
    "RequestFate": record(
        id=string(),
        status=one_of("open", "ended"),
        reason=described(
            nullable(string()),
            "Once it ended: stop, length, tool_calls, queue_timeout, error or rejected; aborted (by its id), client_gone, "
            "timeout, shutdown or slow_consumer where it was left before its end; engine_lost.",
        ),
        error=described(nullable(string()), "What went wrong, for error and rejected."),
    ),
    "Tokenized": record(
        count=_COUNT,
        max_model_len=nullable(integer(1)),
        tokens=array(_COUNT),
        token_strs=described(nullable(array(string())), "As the vocabulary spells them."),
    ),
    "Detokenized": record(prompt=string()),
    "TokenizerInfo": _FREE,
    "Generated": either(_GENERATED, array(_GENERATED, 1)),
    "Root": record(
        optional=(),
        **dict.fromkeys(
            ("name", "description", "version", "base_url", "models", "docs", "openapi", "health", "metrics"), string()
        ),
    ),
    "Version": record(version=string()),
    "ModelInfo": record(
        model_path=string(),
        tokenizer_path=string(),
        is_generation=boolean(),
        served_model_names=array(string(), fewest=1),
        max_model_len=nullable(integer(1)),
        vocab_size=nullable(integer(1)),
    ),
    "ServerInfo": record(
        version=string(),
        status=string(),
        model_path=string(),
        served_model_names=array(string(), fewest=1),
        max_model_len=nullable(integer(1)),
        vocab_size=nullable(integer(1)),
        settings=_FREE,
        internal_states=array(_FREE),
    ),
}
