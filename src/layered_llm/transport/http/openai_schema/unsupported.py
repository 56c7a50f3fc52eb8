"""Fields that change the output and that this server cannot honour: refused, unless they say what it does anyway.

Must not know: what the fields mean.

To ignore such a field would give an answer to another question than the one asked. The names are OpenAI's, and those of vLLM,
SGLang and llama.cpp beside them.
"""

from collections.abc import Mapping
from typing import Any, Final

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.openai_schema.fields import JsonObject, shown

_COMMON: Final[Mapping[str, tuple[Any, ...]]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "custom_logit_processor": (),
    "documents": ([],),
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
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": ("", []),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
    "top_a": (0,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
"""Name of the field and the values that change nothing; null is always one of them."""

OF_CHAT: Final[Mapping[str, tuple[Any, ...]]] = {**_COMMON, "add_special_tokens": (False,), "echo": (False,)}
OF_COMPLETIONS: Final[Mapping[str, tuple[Any, ...]]] = {**_COMMON, "add_special_tokens": (True,), "top_logprobs": (0,)}


def refuse_unsupported_chat_fields(fields: JsonObject) -> None:
    """Raises ParameterError for the first field of a chat body that would change the output."""
    _refuse(fields, OF_CHAT)


def refuse_unsupported_completion_fields(fields: JsonObject) -> None:
    """Raises ParameterError for the first field of a completions body that would change the output."""
    _refuse(fields, OF_COMPLETIONS)


def _refuse(fields: JsonObject, neutral: Mapping[str, tuple[Any, ...]]) -> None:
    for name, value in fields.items():
        if value is None or name not in neutral or any(_same(value, other) for other in neutral[name]):
            continue
        raise ParameterError(name, f"{name}={shown(value)} is not supported by this server")


def _same(value: object, other: object) -> bool:
    # Python holds False equal to 0 and True to 1, JSON does not.
    return isinstance(value, bool) == isinstance(other, bool) and value == other
