"""The request fields of other servers and libraries, as their sources list them.

Recorded on 2026-11-30 from the repositories' files at the commits named; how this server treats each is in
`layered_llm.transport.http.openai.schema.unsupported`. A list is brought up to date by reading the file anew.
"""

from typing import Final


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


VLLM_CHAT: Final = _names(
    """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n presence_penalty
response_format seed stop stream stream_options temperature top_p tools tool_choice reasoning_effort thinking_token_budget
include_reasoning parallel_tool_calls user use_beam_search top_k min_p repetition_penalty watermarking length_penalty
stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
add_generation_prompt continue_final_message add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs
mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_prompt_text return_mm_kwargs cache_salt kv_transfer_params
ec_transfer_params vllm_xargs repetition_detection stream_interval
"""
)
"""vllm-project/vllm 002032ee2b18, vllm/entrypoints/openai/chat_completion/protocol.py, ChatCompletionRequest."""

VLLM_COMPLETION: Final = _names(
    """
model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options suffix
temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words prompt_embeds add_special_tokens
response_format structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params
vllm_xargs repetition_detection thinking_token_budget stream_interval
"""
)
"""vllm-project/vllm 002032ee2b18, vllm/entrypoints/openai/completion/protocol.py, CompletionRequest."""

VLLM_SAMPLING: Final = _names(
    """
n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids ignore_eos
max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs
detokenize skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind stream_interval
skip_clone structured_outputs logit_bias allowed_token_ids extra_args bad_words skip_reading_prefix_cache
thinking_token_budget repetition_detection routed_experts_prompt_start trace_decode_token_ids
"""
)
"""vllm-project/vllm 00388f6573cc, vllm/sampling_params.py, SamplingParams."""

VLLM_FORMER: Final = _names(
    """
best_of guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
logits_processors
"""
)
"""Fields that vLLM had and clients still send."""

VLLM_STREAM_OPTIONS: Final = _names("include_usage continuous_usage_stats")
"""vllm-project/vllm 040a2cc2a629, vllm/entrypoints/openai/engine/protocol.py, StreamOptions."""

VLLM_TOKENIZE: Final = _names(
    """
model prompt add_special_tokens return_token_strs messages add_generation_prompt continue_final_message chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs tools
"""
)
"""vllm-project/vllm 030ea52effcb, vllm/entrypoints/serve/tokenize/protocol.py, both tokenize requests."""

VLLM_DETOKENIZE: Final = _names("model tokens")
"""The same file, DetokenizeRequest."""

SGLANG_CHAT: Final = _names(
    """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n presence_penalty
response_format seed stop stream stream_options temperature top_p user tools tool_choice parallel_tool_calls
return_hidden_states return_routed_experts routed_experts_start_len return_cached_tokens_details return_prompt_token_ids
return_token_ids return_meta_info reasoning_effort reasoning task top_k min_p min_tokens regex ebnf repetition_penalty
stop_token_ids stop_regex no_stop_trim ignore_eos continue_final_message skip_special_tokens lora_path session_id
session_params separate_reasoning stream_reasoning chat_template_kwargs max_dynamic_patch min_dynamic_patch
use_audio_in_video images_config custom_logit_processor custom_params input_ids rid extra_key cache_salt ngram_corpus_id
priority bootstrap_host bootstrap_port bootstrap_room routed_dp_rank disagg_prefill_dp_rank data_parallel_rank
"""
)
"""sgl-project/sglang 004c82e07d87, python/sglang/srt/entrypoints/openai/protocol.py, ChatCompletionRequest."""

SGLANG_COMPLETION: Final = _names(
    """
model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options suffix temperature top_p user return_hidden_states return_routed_experts routed_experts_start_len
return_cached_tokens_details return_token_ids top_k min_p min_tokens json_schema regex ebnf repetition_penalty
stop_token_ids stop_regex no_stop_trim ignore_eos skip_special_tokens lora_path session_id session_params response_format
custom_params custom_logit_processor images_config bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
disagg_prefill_dp_rank data_parallel_rank rid extra_key cache_salt ngram_corpus_id priority custom_labels
"""
)
"""The same file, CompletionRequest."""

SGLANG_STREAM_OPTIONS: Final = _names("include_usage continuous_usage_stats")
"""The same file, StreamOptions."""

SGLANG_TOKENIZE: Final = _names(
    """
model prompt messages tools tool_choice reasoning_effort continue_final_message chat_template_kwargs add_special_tokens
"""
)
"""The same file, TokenizeRequest."""

SGLANG_DETOKENIZE: Final = _names("model tokens skip_special_tokens")
"""The same file, DetokenizeRequest."""

SGLANG_SAMPLING: Final = _names(
    """
max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty
repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens
spaces_between_special_tokens no_stop_trim custom_params stream_interval logit_bias sampling_seed beam_width
"""
)
"""sgl-project/sglang 00c17cafcb9e, python/sglang/srt/sampling/sampling_params.py, and beam_width of io_struct.py."""

SGLANG_GENERATE: Final = _names(
    """
rid session_id text input_ids input_embeds image_data video_data audio_data mm_hashes mm_content_hashes use_audio_in_video
video_config sampling_params return_logprob logprob_start_len top_logprobs_num token_ids_logprob return_sampling_mask
return_text_in_logprobs return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64 stream log_metrics
return_hidden_states return_routed_experts routed_experts_start_len return_indexer_topk modalities session_params lora_path
lora_id custom_logit_processor positional_embed_overrides bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key
decode_tp_size routed_dp_rank data_parallel_rank disagg_prefill_dp_rank kv_router_hint routing_key conversation_id
http_worker_ipc background require_reasoning max_thinking_tokens priority extra_key no_logs custom_labels return_bytes
return_entropy return_prompt_token_ids external_trace_header received_time need_wait_for_mm_inputs num_items_assigned
encoder_urls max_dynamic_patch min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch images_config
multi_item_delimiter_indices cache_salt
"""
)
"""sgl-project/sglang 001067fffe33, python/sglang/srt/managers/io_struct.py, GenerateReqInput."""

LLAMA_CPP_COMPLETION: Final = _names(
    """
prompt verbose timings_per_token stream stream_options cache_prompt return_tokens return_progress sse_ping_interval
n_predict max_completion_tokens max_tokens n_indent n_keep n_discard n_cmpl n n_cache_reuse t_max_predict_ms t_max_prompt_ms
response_fields top_k top_p min_p top_n_sigma xtc_probability xtc_threshold typical_p temperature dynatemp_range
dynatemp_exponent repeat_last_n repeat_penalty frequency_penalty presence_penalty dry_multiplier dry_base dry_allowed_length
dry_penalty_last_n mirostat mirostat_tau mirostat_eta adaptive_target adaptive_decay seed n_probs logprobs min_keep
backend_sampling post_sampling_probs lora dry_sequence_breakers json_schema grammar grammar_type grammar_lazy chat_format
reasoning_format generation_prompt parse_tool_calls chat_parser continue_final_message echo preserved_tokens
grammar_triggers reasoning_control reasoning_budget_tokens reasoning_budget_start_tag reasoning_budget_end_tags
reasoning_budget_end_tag reasoning_budget_message logit_bias ignore_eos stop samplers id_slot image_data speculative.n_max
speculative.n_min speculative.p_min speculative.type speculative.ngram_size_n speculative.ngram_size_m
speculative.ngram_min_hits
"""
)
"""ggml-org/llama.cpp 0177c34227eb, tools/server/server-schema.cpp; id_slot, image_data and prompt of its README."""

LLAMA_CPP_TOKENIZE: Final = _names("content add_special parse_special with_pieces")
"""ggml-org/llama.cpp, tools/server/README.md, `/tokenize`."""

LLAMA_CPP_DETOKENIZE: Final = _names("tokens")

OPENAI_CHAT: Final = _names(
    """
messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata
modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options
prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options
temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
)
"""openai 3.57, types/chat/completion_create_params.py."""

OPENAI_COMPLETION: Final = _names(
    """
model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options suffix temperature top_p user
"""
)
"""openai 3.57, types/completion_create_params.py."""

OPENAI_STREAM_OPTIONS: Final = _names("include_usage include_obfuscation")

HUGGING_FACE: Final = _names(
    """
max_length max_new_tokens min_length min_new_tokens early_stopping max_time stop_strings do_sample num_beams num_beam_groups
use_cache temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff repetition_penalty
encoder_repetition_penalty length_penalty no_repeat_ngram_size bad_words_ids renormalize_logits forced_bos_token_id
forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
sequence_bias token_healing guidance_scale watermarking_config num_return_sequences output_attentions output_hidden_states
output_scores output_logits return_dict_in_generate pad_token_id bos_token_id eos_token_id encoder_no_repeat_ngram_size
decoder_start_token_id is_assistant num_assistant_tokens prompt_lookup_num_tokens max_matching_ngram_size penalty_alpha
diversity_penalty constraints force_words_ids dola_layers top_a tfs_z return_full_text truncate watermark details
decoder_input_details top_n_tokens adapter_id frequency_penalty seed stop
"""
)
"""transformers' GenerationConfig, and the parameters of text-generation-inference's `/generate`."""

OTHERS: Final = _names(
    """
add_bos_token ban_eos_token banned_strings banned_tokens cfg_scale custom_token_bans dynamic_temperature enable_thinking
extra_body format input_prefix input_suffix instructions max_output_tokens mirostat_mode negative_prompt num_predict options
penalize_nl penalty_prompt random_seed repetition_penalty_range safe_prompt smoothing_factor stop_sequences system
system_prompt tfs thinking token_bias typ_p typical
"""
)
"""Names by which clients of Anthropic, Mistral, Qwen, DeepSeek, Ollama, text-generation-webui and older llama.cpp ask for
another output, and one that OpenAI's Python client has for what it sends as fields of the body."""

CHAT_NAMES: Final = frozenset(
    (*VLLM_CHAT, *VLLM_SAMPLING, *VLLM_FORMER, *SGLANG_CHAT, *LLAMA_CPP_COMPLETION, *OPENAI_CHAT, *HUGGING_FACE, *OTHERS)
)
COMPLETION_NAMES: Final = frozenset(
    (
        *VLLM_COMPLETION,
        *VLLM_SAMPLING,
        *VLLM_FORMER,
        *SGLANG_COMPLETION,
        *LLAMA_CPP_COMPLETION,
        *OPENAI_COMPLETION,
        *HUGGING_FACE,
        *OTHERS,
    )
)
GENERATE_NAMES: Final = frozenset(SGLANG_GENERATE)
SAMPLING_NAMES: Final = frozenset((*SGLANG_SAMPLING, *VLLM_SAMPLING, *LLAMA_CPP_COMPLETION, *HUGGING_FACE, *OTHERS))
TOKENIZE_NAMES: Final = frozenset((*VLLM_TOKENIZE, *SGLANG_TOKENIZE, *LLAMA_CPP_TOKENIZE))
DETOKENIZE_NAMES: Final = frozenset((*VLLM_DETOKENIZE, *SGLANG_DETOKENIZE, *LLAMA_CPP_DETOKENIZE))
STREAM_OPTION_NAMES: Final = frozenset((*VLLM_STREAM_OPTIONS, *SGLANG_STREAM_OPTIONS, *OPENAI_STREAM_OPTIONS))
ALL_NAMES: Final = (
    CHAT_NAMES | COMPLETION_NAMES | GENERATE_NAMES | SAMPLING_NAMES | TOKENIZE_NAMES | DETOKENIZE_NAMES | STREAM_OPTION_NAMES
)
