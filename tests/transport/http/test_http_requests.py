import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.messages.prompts import MAX_TURNS, ChatMessage, Prompt
from layered_llm.domain.sampling import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
)
from layered_llm.transport.http.exchange.api_error import ApiError
from layered_llm.transport.http.openai.schema.endpoint_fields import MAX_CHOICES_PER_BODY
from layered_llm.transport.http.openai.schema.requests import (
    GenerationRequest,
    parse_chat,
    parse_completion,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: object) -> GenerationRequest:
    parsed = parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())
    assert isinstance(parsed, GenerationRequest), parsed
    return parsed


def completion(**fields: object) -> GenerationRequest:
    parsed = parse_completion(json.dumps({"prompt": "x", **fields}).encode())
    assert isinstance(parsed, GenerationRequest), parsed
    return parsed


def chat_error(**fields: object) -> ApiError:
    parsed = parse_chat(json.dumps({"messages": MESSAGES, **fields}).encode())
    assert isinstance(parsed, ApiError), parsed
    assert parsed.status == 400
    return parsed


def completion_error(**fields: object) -> ApiError:
    parsed = parse_completion(json.dumps({"prompt": "x", **fields}).encode())
    assert isinstance(parsed, ApiError), parsed
    assert parsed.status == 400
    return parsed


def test_a_bare_chat_may_use_the_rest_of_the_context() -> None:
    assert chat().params == SamplingParams(max_tokens=None)


def test_a_bare_completion_ends_after_16_tokens() -> None:
    assert completion().params == SamplingParams(max_tokens=16)


def test_every_supported_field_reaches_the_sampling_parameters() -> None:
    fields = {
        "max_tokens": 5,
        "min_tokens": 2,
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.25,
        "top_n_sigma": 1.5,
        "allowed_token_ids": [4, 5],
        "bad_words": ["x", "y z"],
        "repetition_penalty": 1.5,
        "presence_penalty": -0.5,
        "frequency_penalty": 2,
        "seed": -5,
        "stop": ["a", "b"],
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }

    tuples = {"stop": ("a", "b"), "stop_token_ids": (1, 2), "allowed_token_ids": (4, 5), "bad_words": ("x", "y z")}
    expected = SamplingParams(**{**fields, **tuples})  # type: ignore[arg-type]

    assert chat(**fields).params == expected
    assert completion(**fields).params == expected


def test_an_explicit_null_is_an_absent_field() -> None:
    names = [
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "n",
        "stop",
        "seed",
        "stream",
        "stream_options",
        "ignore_eos",
        "min_tokens",
        "stop_token_ids",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "user",
        "tools",
        "tool_choice",
        "response_format",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "min_p",
        "chat_template_kwargs",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "return_token_ids",
        "request_id",
        "truncate_prompt_tokens",
        "echo",
        "suffix",
        "best_of",
        "model",
    ]

    assert chat() == chat(**dict.fromkeys(names))
    assert completion() == completion(**dict.fromkeys(names))


def test_the_newer_name_of_the_token_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=9).params.max_tokens == 9


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_has_two_ways_to_be_off(off: int) -> None:
    assert chat(top_k=off).params.top_k == 0


@pytest.mark.parametrize("off", [0, -1, -0.5])
def test_top_n_sigma_is_off_at_zero_and_below(off: float) -> None:
    assert chat(top_n_sigma=off).params == chat().params


@pytest.mark.parametrize(("side", "keeps_beginning"), [("left", False), ("right", True)])
def test_the_side_that_is_cut_is_the_requests_choice(side: str, keeps_beginning: bool) -> None:
    for prompt in (
        chat(truncate_prompt_tokens=5, truncation_side=side).prompts[0],
        completion(truncate_prompt_tokens=5, truncation_side=side).prompts[0],
    ):
        assert (5, keeps_beginning) == (prompt.keep_last_tokens, prompt.keeps_beginning)
    assert chat(truncation_side=side) == chat()


def test_the_seed_minus_one_asks_for_a_random_one() -> None:
    assert chat(seed=-1).params.seed is None


def test_one_stop_string_needs_no_list() -> None:
    assert chat(stop="end").params.stop == ("end",)


@pytest.mark.parametrize(
    ("options", "expected"),
    [(None, False), ({}, False), ({"include_usage": False}, False), ({"include_usage": True}, True)],
)
def test_usage_is_included_only_on_demand(options: object, expected: bool) -> None:
    assert chat(stream=True, stream_options=options).include_usage is expected


def test_stream_options_need_a_stream() -> None:
    assert chat_error(stream_options={"include_usage": True}).param == "stream_options"
    assert chat_error(stream=False, stream_options={}).param == "stream_options"


def test_unknown_fields_and_harmless_metadata_are_ignored() -> None:
    ignored = {"user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "prediction": {}, "blah": [1]}

    assert chat(**ignored) == chat()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", True),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", 1_000_000),
        ("temperature", 10**400),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", -1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("min_p", False),
        ("repetition_penalty", 0),
        ("repetition_penalty", "1"),
        ("presence_penalty", -2.5),
        ("frequency_penalty", 2.5),
        ("logit_bias", []),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"²": 1}),
        ("logit_bias", {"99999999999999999999": 1}),
        ("logit_bias", {"2147483648": 1}),
        ("logit_bias", {"1": "5"}),
        ("logit_bias", {"1": True}),
        ("logit_bias", {"1": None}),
        ("logit_bias", {"1": 5, "01": 6}),
        ("n", 0),
        ("n", -1),
        ("n", 10**9),
        ("n", "2"),
        ("n", True),
        ("max_tokens", -1),
        ("max_tokens", 16.0),
        ("max_tokens", 2**31),
        ("max_tokens", 10**400),
        ("min_tokens", -1),
        ("seed", 2**63),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["x"] * 65),
        ("stop_token_ids", 5),
        ("ignore_eos", 1),
        ("stream", "true"),
        ("stream_options", []),
        ("model", 5),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    for error in (chat_error(**{field: value}), completion_error(**{field: value})):
        assert error.param is not None
        assert error.param == field
        assert field in error.message or field == "stop"
        assert error.code == "invalid_value"


def test_an_item_of_a_list_is_named_by_its_place() -> None:
    assert chat_error(stop=["a", 5]).param == "stop[1]"
    assert "stop_token_ids[1]" in chat_error(stop_token_ids=[1, -1]).message


def test_fewer_tokens_allowed_than_demanded_is_refused_with_both_numbers() -> None:
    error = chat_error(max_tokens=3, min_tokens=5)

    assert error.param == "min_tokens"
    assert "3" in error.message
    assert "5" in error.message


@pytest.mark.parametrize("bias", [-101, 100.5, 1000])
def test_a_bias_beyond_openais_range_is_refused(bias: float) -> None:
    assert chat(logit_bias={"5": -100, "7": 100}).params.logit_bias == ((5, -100), (7, 100))
    for error in (chat_error(logit_bias={"5": bias}), completion_error(logit_bias={"5": bias})):
        assert ("logit_bias", True) == (error.param, "between -100 and 100" in error.message)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_prompt_alone_may_be_asked_for_everywhere_and_no_less(name: str) -> None:
    assert [0, 0] == [chat(**{name: 0}).params.max_tokens, completion(**{name: 0}).params.max_tokens]
    for error in (chat_error(**{name: -1}), completion_error(**{name: -1})):
        assert (name, True) == (error.param, "between 0 and 2147483647" in error.message)


NEUTRAL = [
    ("tools", []),
    ("tool_choice", "none"),
    ("functions", []),
    ("response_format", {"type": "text"}),
    ("top_logprobs", 0),
    ("logit_bias", {}),
    ("presence_penalty", 0),
    ("frequency_penalty", 0.0),
    ("echo", False),
    ("suffix", ""),
    ("best_of", 1),
    ("use_beam_search", False),
    ("modalities", ["text"]),
    ("parallel_tool_calls", False),
    ("repeat_penalty", 1.0),
    ("typical_p", 1.0),
    ("n_predict", -1),
    ("stop_regex", []),
    ("spaces_between_special_tokens", False),
    ("add_generation_prompt", True),
    ("continue_final_message", False),
    ("chat_template_kwargs", {}),
    ("return_token_ids", False),
]


@pytest.mark.parametrize(("field", "value"), NEUTRAL)
def test_a_neutral_value_of_an_unsupported_field_is_fine(field: str, value: object) -> None:
    assert chat(**{field: value}) == chat()


UNSUPPORTED = [
    ("tools", [{"type": "function"}]),
    ("tool_choice", "auto"),
    ("functions", [{}]),
    ("response_format", {"type": "json_object"}),
    ("suffix", "x"),
    ("best_of", 2),
    ("structured_outputs", {"choice": ["a"]}),
    ("guided_regex", "a+"),
    ("use_beam_search", True),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x"}),
    ("repeat_penalty", 1.1),
    ("typical_p", 0.9),
    ("n_predict", 64),
    ("mirostat", 2),
    ("min_new_tokens", 3),
    ("no_stop_trim", True),
    ("stop_regex", "a+"),
]


@pytest.mark.parametrize(("field", "value"), UNSUPPORTED)
def test_a_field_that_would_change_the_output_is_refused_and_not_ignored(field: str, value: object) -> None:
    for error in (chat_error(**{field: value}), completion_error(**{field: value})):
        assert error.param == field
        assert "not supported" in error.message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_a_chat_asks_for_logprobs_by_a_flag_and_a_number(fields: dict[str, object], expected: int | None) -> None:
    assert chat(**fields).params.logprobs == expected


@pytest.mark.parametrize("count", [0, 5, 20])
def test_a_completion_asks_for_logprobs_by_a_number_alone(count: int) -> None:
    assert completion(logprobs=count).params.logprobs == count


@pytest.mark.parametrize("fields", [{"top_logprobs": 3}, {"logprobs": False, "top_logprobs": 1}])
def test_top_logprobs_need_logprobs(fields: dict[str, object]) -> None:
    error = chat_error(**fields)

    assert error.param == "top_logprobs"
    assert "logprobs is true" in error.message


@pytest.mark.parametrize("value", [-1, 21, "3", True, 1.0])
def test_a_wrong_number_of_logprobs_is_refused_by_the_name_of_its_field(value: object) -> None:
    assert chat_error(logprobs=True, top_logprobs=value).param == "top_logprobs"
    assert completion_error(logprobs=value).param == "logprobs"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (None, None, False)),
        ({"echo": True}, (None, None, True)),
        ({"echo": True, "logprobs": 3}, (3, 3, True)),
        ({"echo": False, "logprobs": 3}, (3, None, False)),
        ({"echo": True, "logprobs": 3, "prompt_logprobs": 1}, (3, 1, True)),
        ({"prompt_logprobs": 0}, (None, 0, False)),
    ],
)
def test_an_echo_tells_of_the_prompt_what_is_told_of_the_output(fields: dict[str, object], expected: object) -> None:
    params = completion(**fields).params

    assert (params.logprobs, params.prompt_logprobs, params.echo) == expected


def test_prompt_logprobs_are_an_answer_without_any_output() -> None:
    assert completion(echo=True, max_tokens=0).params.max_tokens == 0
    assert completion(prompt_logprobs=1, max_tokens=0).params.max_tokens == 0
    assert chat(prompt_logprobs=1, max_completion_tokens=0).params.max_tokens == 0


def test_prompt_logprobs_are_not_streamed() -> None:
    error = chat_error(prompt_logprobs=1, stream=True)

    assert error.param == "prompt_logprobs"
    assert "stream is true" in error.message


@pytest.mark.parametrize(("field", "value"), [("prompt_logprobs", -1), ("prompt_logprobs", 21), ("echo", 1), ("echo", "yes")])
def test_a_wrong_demand_for_the_prompt_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    assert completion_error(**{field: value}).param == field


def test_each_endpoint_has_its_own_way_to_ask_for_logprobs() -> None:
    assert chat_error(logprobs=1).param == "logprobs"
    assert completion_error(top_logprobs=1).param == "top_logprobs"


def test_roles_and_contents_become_turns() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "audio": None},
        {"role": "assistant"},
        {"role": "tool", "content": "t", "tool_call_id": "call_1"},
    ]

    assert chat(messages=messages).prompts[0].chat == (
        ChatMessage(role="system", content="s"),
        ChatMessage(role="developer", content="d"),
        ChatMessage(role="user", content="a\nb", name="ann"),
        ChatMessage(role="assistant", content=None),
        ChatMessage(role="assistant", content=None),
        ChatMessage(role="tool", content="t", tool_call_id="call_1"),
    )


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "narrator", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "audio": {"id": "a"}}], "messages[0].audio"),
        ([{"role": "system", "content": "x", "tools": [{}]}], "messages[0].tools"),
        ([{"role": "assistant", "content": "x", "refusal": "No."}], "messages[0].refusal"),
        ([{"role": "assistant", "content": "x", "prefix": True}], "messages[0].prefix"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": "\ud800"}], "messages[0].content"),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(messages: object, param: str) -> None:
    assert chat_error(messages=messages).param == param


def test_the_chat_route_takes_a_plain_prompt() -> None:
    parsed = parse_chat(b'{"prompt": "once"}')

    assert isinstance(parsed, GenerationRequest)
    assert parsed.prompts[0] == Prompt.of_text("once")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": ""}] * (MAX_TURNS + 1),
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * (MAX_TURNS + 1)}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * (MAX_TURNS // 2)}] * 2,
    ],
    ids=["messages", "calls", "together"],
)
def test_more_turns_than_a_conversation_may_have_are_refused(messages: object) -> None:
    error = chat_error(messages=messages)
    assert "messages" == (error.param or "").partition("[")[0]
    assert f"at most {MAX_TURNS} are allowed" in error.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_TURNS + 1)}], "messages.content"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_TURNS // 2)}] * 3, "messages.content"),
    ],
    ids=["one turn", "together"],
)
def test_more_text_parts_than_a_conversation_may_have_are_refused(messages: object, param: str) -> None:
    error = chat_error(messages=messages)
    assert param == error.param
    assert f"at most {MAX_TURNS} are allowed" in error.message


@pytest.mark.parametrize(
    ("param", "item", "most"),
    [
        ("stop", "x", MAX_STOP_STRINGS),
        ("stop_token_ids", 1, MAX_STOP_TOKEN_IDS),
        ("allowed_token_ids", 1, MAX_ALLOWED_TOKENS),
        ("bad_words", "x", MAX_BAD_WORDS),
        ("documents", {}, MAX_TURNS),
        ("prompt", "x", MAX_CHOICES_PER_BODY),
        ("prompt", [1], MAX_CHOICES_PER_BODY),
    ],
)
def test_every_list_of_a_body_has_a_bound_that_its_error_names(param: str, item: object, most: int) -> None:
    error = completion_error(**{"prompt": "x", param: [item] * (most + 1)}) if param != "documents" else chat_error(
        messages=[{"role": "user", "content": "x"}], documents=[item] * (most + 1)
    )  # fmt: skip
    assert (param, f"{param} holds {most + 1} items, at most {most} are allowed") == (error.param, error.message)


def test_biases_have_a_bound_too() -> None:
    error = completion_error(prompt="x", logit_bias={str(token): 1 for token in range(MAX_BIASED_TOKENS + 1)})
    assert ("logit_bias", True) == (error.param, f"at most {MAX_BIASED_TOKENS} are allowed" in error.message)


def test_messages_and_prompt_together_are_ambiguous() -> None:
    assert chat_error(prompt="x").param == "prompt"


def test_a_prompt_comes_in_four_shapes() -> None:
    assert completion(prompt="a").prompts == (Prompt.of_text("a"),)
    assert completion(prompt=["a", ""]).prompts == (Prompt.of_text("a"), Prompt.of_text(""))
    assert completion(prompt=[1, 2]).prompts == (Prompt.of_token_ids([1, 2]),)
    assert completion(prompt=[[1], [2, 3]]).prompts == (Prompt.of_token_ids([1]), Prompt.of_token_ids([2, 3]))


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        (["a", 5], "prompt[1]"),
        ([1, "a"], "prompt"),
        ([[1], 2], "prompt[1]"),
        ([1, True], "prompt"),
        ([-1], "prompt"),
        ([2**31], "prompt"),
        ([1.5], "prompt"),
        ([None], "prompt"),
    ],
)
def test_a_wrong_prompt_is_refused(prompt: object, param: str) -> None:
    assert completion_error(prompt=prompt).param == param


def test_the_choices_of_all_prompts_are_bounded_together() -> None:
    assert len(completion(prompt=["x"] * 64, n=2).prompts) == 64
    assert "130" not in completion_error(prompt=["x"] * 65, n=2).message
    assert completion_error(prompt=["x"] * 65, n=2).param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"x": -Infinity}',
        b'{"temperature": 1e400}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"x": ' + b"[" * 100_000,
        b'{"messages": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a": 1} x',
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    for parsed in (parse_chat(body), parse_completion(body)):
        assert isinstance(parsed, ApiError)
        assert (parsed.status, parsed.code) == (400, "invalid_json")
        assert len(parsed.message) < 300


def test_a_nesting_bomb_in_an_ignored_field_is_refused_too() -> None:
    body = b'{"prompt": "x", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"

    assert isinstance(parse_completion(body), ApiError)


def test_of_repeated_keys_the_last_counts() -> None:
    parsed = parse_completion(b'{"prompt": "a", "prompt": "b"}')

    assert isinstance(parsed, GenerationRequest)
    assert parsed.prompts == (Prompt.of_text("b"),)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        "messages",
        "prompt",
        "n",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "stream",
        "stream_options",
        "stop_token_ids",
        "model",
        "logit_bias",
    ]
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.dictionaries(FIELDS, ANY_JSON))
def test_any_json_is_either_a_request_or_a_400(fields: dict[str, object]) -> None:
    body = json.dumps(fields).encode()

    for parsed in (parse_chat(body), parse_completion(body)):
        assert not isinstance(parsed, ApiError) or parsed.status == 400


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_token_ids_survive_the_packing(ids: list[int]) -> None:
    (prompt,) = completion(prompt=ids).prompts

    assert prompt.token_ids is not None
    assert list(unpack_i32(prompt.token_ids)) == ids


def test_an_answer_can_be_sent_back_as_a_turn_with_all_that_it_has() -> None:
    answered: dict[str, object] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": [],
    }

    assert chat(messages=[*MESSAGES, answered]) == chat(messages=[*MESSAGES, {"role": "assistant", "content": "x"}])


def test_the_turn_of_a_function_is_taken() -> None:
    (turn,) = chat(messages=[{"role": "function", "name": "f", "content": "4"}]).prompts[0].chat or ()

    assert ("function", "f", "4") == (turn.role, turn.name, turn.content)
