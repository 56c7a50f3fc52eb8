"""Fields that change the output and that this server cannot honour: refused, unless they say what it does anyway.

Must not know: what the fields mean.

To ignore such a field would give an answer to another question than the one asked. The names are OpenAI's, and those of vLLM,
SGLang and llama.cpp beside them.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.openai_schema.fields import JsonObject, shown

Neutral: TypeAlias = Mapping[str, tuple[Any, ...]]
"""Name of a field and the values that change nothing; null is always one of them."""

_COMMON: Final[Neutral] = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "custom_logit_processor": (),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "ebnf": (),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "min_new_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "n_predict": (-1,),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (False,),
    "prompt_embeds": (),
    "reasoning_effort": ("none",),
    "regex": (),
    "repeat_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop_regex": ("", []),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_a": (0,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
_OF_TEMPLATES: Final[Neutral] = {
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
}

REFUSED_IN_CHAT: Final[Neutral] = _COMMON
REFUSED_IN_COMPLETIONS: Final[Neutral] = {**_COMMON, **_OF_TEMPLATES, "top_logprobs": (0,)}

_REASONS: Final[Mapping[str, str]] = {
    "chat_template": "a template is a program, and none is taken from a request; the server has --chat-template FILE for it",
}


def refuse_unsupported_chat_fields(fields: JsonObject) -> None:
    """Raises ParameterError for the first field of a chat body that would change the output."""
    refuse(fields, REFUSED_IN_CHAT)


def refuse_unsupported_completion_fields(fields: JsonObject) -> None:
    """Raises ParameterError for the first field of a completions body that would change the output."""
    refuse(fields, REFUSED_IN_COMPLETIONS)


def refuse(fields: JsonObject, neutral: Neutral) -> None:
    """Raises ParameterError for the first field that has another value than its neutral ones."""
    for name, value in fields.items():
        if value is None or name not in neutral or any(_same(value, other) for other in neutral[name]):
            continue
        reason = _REASONS.get(name)
        raise ParameterError(name, f"{name}={shown(value)} is not supported by this server" + (f": {reason}" if reason else ""))


def _same(value: object, other: object) -> bool:
    # Python holds False equal to 0 and True to 1, JSON does not.
    return isinstance(value, bool) == isinstance(other, bool) and value == other
