"""What is done with the fields that this server does not have: refused where they would change the answer, else of no effect.

Must not know: what the fields mean.

To ignore a field that changes the answer would answer another question than the one asked: it is refused, unless its value says
what the server does anyway. The names are OpenAI's, Hugging Face's, those of vLLM, SGLang and llama.cpp, and the best known of
others; `tests/transport/http/test_http_peer_fields.py` holds the tables against their lists. A field that an endpoint does have
is in the endpoint's own table, and the same name is refused where another endpoint does not have it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from layered_llm.domain.errors import ParameterError
from layered_llm.transport.http.openai.schema.fields import JsonObject, shown

Neutral: TypeAlias = Mapping[str, tuple[Any, ...]]
"""Name of a field and the values that change nothing; null is always one of them."""

NOTHING: Final[Neutral] = {}

_CHANGES_THE_PROMPT: Final[Neutral] = {
    "add_bos_token": (),
    "add_generation_prompt": (True,),
    "add_special": (),
    "add_special_tokens": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "enable_thinking": (),
    "functions": ([],),
    "generation_prompt": ("",),
    "input_embeds": (),
    "input_ids": (),
    "input_prefix": ("",),
    "input_suffix": ("",),
    "instructions": ("",),
    "negative_prompt": ("",),
    "parse_special": (True,),
    "positional_embed_overrides": (),
    "prompt_embeds": (),
    "reasoning": ({},),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safe_prompt": (False,),
    "session_params": ({},),
    "system": ("",),
    "system_prompt": ("",),
    "task": (),
    "tool_choice": ("none",),
    "tools": ([],),
    "truncate": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "with_pieces": (False,),
}
"""Or what is told of it."""
_CHANGES_THE_OUTPUT: Final[Neutral] = {
    "adapter_id": ("",),
    "adaptive_target": (-1,),
    "allowed_token_ids": (),
    "audio": (),
    "audio_data": ([],),
    "background": (False,),
    "bad_words": ([],),
    "bad_words_ids": ([],),
    "ban_eos_token": (False,),
    "banned_strings": ([],),
    "banned_tokens": ([],),
    "beam_width": (1,),
    "begin_suppress_tokens": ([],),
    "best_of": (1,),
    "cfg_scale": (1,),
    "constraints": ([],),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "custom_token_bans": ("",),
    "diversity_penalty": (0,),
    "do_sample": (True,),
    "dola_layers": (),
    "dry_multiplier": (0,),
    "dynamic_temperature": (False,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "ebnf": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "eos_token_id": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "extra_args": ({},),
    "extra_body": ({},),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "format": ("",),
    "frequency_penalty": (),
    "function_call": ("none",),
    "grammar": ("",),
    "guidance_scale": (1,),
    "guided_choice": ([],),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "image_data": ([],),
    "json_schema": (),
    "length_penalty": (1,),
    "logit_bias": (),
    "logits_processors": ([],),
    "lora": ([],),
    "lora_id": (),
    "lora_path": (),
    "max_completion_tokens": (),
    "max_length": (),
    "max_new_tokens": (),
    "max_output_tokens": (),
    "max_thinking_tokens": (),
    "max_time": (),
    "max_tokens": (),
    "min_keep": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_p": (),
    "min_tokens": (),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "modalities": (["text"],),
    "n_indent": (0,),
    "n_predict": (-1,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_predict": (-1,),
    "options": ({},),
    "penalize_nl": (False,),
    "penalty_alpha": (0,),
    "penalty_prompt": (),
    "presence_penalty": (),
    "random_seed": (),
    "reasoning_budget_tokens": (-1,),
    "regex": (),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "repeat_last_n": (-1,),
    "repeat_penalty": (1,),
    "repetition_detection": ({},),
    "repetition_penalty": (),
    "repetition_penalty_range": (0,),
    "require_reasoning": (False,),
    "samplers": (),
    "sampling_params": ({},),
    "sampling_seed": (),
    "seed": (-1,),
    "sequence_bias": (),
    "smoothing_factor": (0,),
    "stop": ([],),
    "stop_regex": ("", []),
    "stop_sequences": ([],),
    "stop_strings": ([],),
    "stop_token_ids": ([],),
    "structural_tag": (),
    "structured_outputs": (),
    "suffix": ("",),
    "suppress_tokens": ([],),
    "t_max_predict_ms": (-1, 0),
    "temperature": (),
    "tfs": (1,),
    "tfs_z": (1,),
    "thinking": ({"type": "disabled"},),
    "thinking_token_budget": (-1,),
    "token_bias": (),
    "token_healing": (False,),
    "top_a": (0,),
    "top_h": (),
    "top_k": (),
    "top_n_sigma": (-1,),
    "top_p": (),
    "trace_decode_token_ids": (),
    "typ_p": (1,),
    "typical": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "video_data": ([],),
    "vllm_xargs": ({},),
    "watermark": (False,),
    "watermarking": (False,),
    "watermarking_config": (),
    "web_search_options": (),
    "xtc_probability": (0,),
}
_CHANGES_WHAT_IS_TOLD: Final[Neutral] = {
    "cache_salt": (),
    "decoder_input_details": (False,),
    "details": (False,),
    "detokenize": (True,),
    "ec_transfer_params": (),
    "echo": (False,),
    "extra_key": ("",),
    "flat_logprobs": (False,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "logprob_start_len": (-1,),
    "logprob_token_ids": (),
    "logprobs": (False,),
    "moderation": (),
    "multi_item_delimiter_indices": (),
    "n": (1,),
    "n_cmpl": (1,),
    "n_probs": (0,),
    "no_stop_trim": (False,),
    "num_return_sequences": (1,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_kind": (),
    "output_logits": (False,),
    "output_scores": (False,),
    "post_sampling_probs": (False,),
    "priority": (0,),
    "prompt_logprob_start": (),
    "prompt_logprob_token_ids": (),
    "prompt_logprobs": (),
    "reasoning_format": ("none", "auto"),
    "request_id": (),
    "response_fields": ([],),
    "return_cached_tokens_details": (False,),
    "return_dict_in_generate": (False,),
    "return_entropy": (False,),
    "return_flat_raw_top_logprobs": (False,),
    "return_flat_raw_top_logprobs_b64": (False,),
    "return_full_text": (False,),
    "return_hidden_states": (False,),
    "return_indexer_topk": (False,),
    "return_logprob": (False,),
    "return_meta_info": (False,),
    "return_prompt_text": (False,),
    "return_prompt_token_ids": (False,),
    "return_routed_experts": (False,),
    "return_sampling_mask": (False,),
    "return_token_ids": (False,),
    "return_tokens": (False,),
    "return_tokens_as_token_ids": (False,),
    "rid": (),
    "skip_special_tokens": (True,),
    "stream": (False,),
    "stream_options": (),
    "token_ids_logprob": ([],),
    "top_logprobs": (0,),
    "top_logprobs_num": (0,),
    "top_n_tokens": (0,),
}

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    name: why
    for why, names in {
        "It only shapes what another field turns on, and that field is refused.": """
            adaptive_decay chat_format chat_parser dry_allowed_length dry_base dry_penalty_last_n dry_sequence_breakers
            dynatemp_exponent grammar_lazy grammar_triggers grammar_type guided_decoding_backend guided_whitespace_pattern
            image_max_dynamic_patch images_config max_dynamic_patch media_io_kwargs min_dynamic_patch mirostat_eta mirostat_tau
            mm_content_hashes mm_hashes mm_processor_kwargs num_items_assigned parallel_tool_calls parse_tool_calls
            preserved_tokens reasoning_budget_end_tag reasoning_budget_end_tags reasoning_budget_message
            reasoning_budget_start_tag reasoning_control routed_experts_prompt_start routed_experts_start_len
            use_audio_in_video video_config video_max_dynamic_patch xtc_threshold""",
        "It says how, where or when tokens are computed, and not which.": """
            backend_sampling bootstrap_host bootstrap_pair_key bootstrap_port bootstrap_room cache_prompt data_parallel_rank
            decode_tp_size disagg_prefill_dp_rank encoder_urls id_slot is_assistant kv_router_hint max_matching_ngram_size
            n_cache_reuse n_discard n_keep need_wait_for_mm_inputs ngram_corpus_id num_assistant_tokens prediction
            prompt_cache_key prompt_cache_options prompt_cache_retention prompt_lookup_num_tokens routed_dp_rank routing_key
            service_tier skip_reading_prefix_cache speculative.n_max speculative.n_min speculative.ngram_min_hits
            speculative.ngram_size_m speculative.ngram_size_n speculative.p_min speculative.type t_max_prompt_ms use_cache""",
        "It says who asks, or what is kept and logged of it.": """
            conversation_id custom_labels external_trace_header http_worker_ipc log_metrics metadata no_logs received_time
            safety_identifier session_id skip_clone store user verbose""",
        "It says into which pieces a stream is cut, or what is told between them.": """
            include_obfuscation return_progress sse_ping_interval stream_interval stream_reasoning timings_per_token""",
        "Thoughts are told in the text, as by every server without a parser for them.": "include_reasoning separate_reasoning",
        "It is of other models or other endpoints, in the peers too.": """
            bos_token_id decoder_start_token_id pad_token_id return_bytes return_mm_kwargs return_token_offsets""",
        "The server has its own tokens for them, whatever this says.": "spaces_between_special_tokens",
    }.items()
    for name in names.split()
}
"""Fields that are taken with any value, by name, with the reason; only those of the peers' that an endpoint does not have."""

_REASONS: Final[Mapping[str, str]] = {
    "chat_template": "a template is a program, and none is taken from a request; the server has --chat-template FILE for it",
    "enable_thinking": "chat_template_kwargs is what the template is given",
    "extra_body": "OpenAI's Python client sends its members as fields of the body: give them there",
    "extra_key": "cache_salt keeps computed prefixes apart",
}
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "add_special": ("add_special_tokens",),
    "ban_eos_token": ("ignore_eos",),
    "banned_strings": ("bad_words",),
    "include_stop_str_in_output": ("no_stop_trim",),
    "instructions": ("messages",),
    "max_completion_tokens": ("max_new_tokens",),
    "max_length": ("max_tokens", "max_new_tokens"),
    "max_new_tokens": ("max_tokens",),
    "max_output_tokens": ("max_tokens", "max_new_tokens"),
    "max_tokens": ("max_new_tokens",),
    "min_length": ("min_tokens", "min_new_tokens"),
    "min_new_tokens": ("min_tokens",),
    "min_tokens": ("min_new_tokens",),
    "n_cmpl": ("n",),
    "n_predict": ("max_tokens", "max_new_tokens"),
    "n_probs": ("top_logprobs", "logprobs", "top_logprobs_num"),
    "no_stop_trim": ("include_stop_str_in_output",),
    "num_predict": ("max_tokens", "max_new_tokens"),
    "num_return_sequences": ("n",),
    "random_seed": ("seed", "sampling_seed"),
    "repeat_penalty": ("repetition_penalty",),
    "return_tokens": ("return_token_ids",),
    "rid": ("request_id",),
    "sampling_seed": ("seed",),
    "seed": ("sampling_seed",),
    "stop_sequences": ("stop",),
    "stop_strings": ("stop",),
    "system": ("messages",),
    "system_prompt": ("messages",),
    "token_bias": ("logit_bias",),
    "truncate": ("truncate_prompt_tokens",),
    "with_pieces": ("return_token_strs",),
}
"""What may be given in place of a field."""


def refused_beside(supported: Iterable[str], *, only_prompt: bool = False) -> Neutral:
    """What an endpoint refuses that has the fields `supported`; with `only_prompt` one that samples nothing."""
    known = {*supported}
    tables = [_CHANGES_THE_PROMPT] if only_prompt else [_CHANGES_THE_PROMPT, _CHANGES_THE_OUTPUT, _CHANGES_WHAT_IS_TOLD]
    return {name: neutral for table in tables for name, neutral in table.items() if name not in known}


def refuse(fields: JsonObject, neutral: Neutral, supported: Iterable[str] = ()) -> None:
    """Raises ParameterError for the first field that has another value than its neutral ones.

    `supported` are the fields that may be given in its place, those of a member as `member.name`.
    """
    for name, value in fields.items():
        if value is None or name not in neutral or any(_same(value, other) for other in neutral[name]):
            continue
        reason = _reason(name, {*supported})
        raise ParameterError(name, f"{name}={shown(value)} is not supported by this server" + (f": {reason}" if reason else ""))


def _reason(name: str, supported: set[str]) -> str | None:
    ways = [place + other for other in (name, *_INSTEAD.get(name, ())) for place in ("sampling_params.", "")]
    instead = next((way for way in ways if way in supported), None)
    return _REASONS.get(name) if instead is None else f"give {instead}"


def _same(value: object, other: object) -> bool:
    # Python holds False equal to 0 and True to 1, JSON does not.
    return isinstance(value, bool) == isinstance(other, bool) and value == other
