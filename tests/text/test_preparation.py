import json
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from layered_llm.domain.columns import unpack_f32, unpack_i32
from layered_llm.domain.limits import EngineLimits
from layered_llm.domain.messages.api_text import Rejected
from layered_llm.domain.messages.prompts import WHOLE_CONTEXT, ChatMessage, Prompt, Rendering, ToolCall
from layered_llm.domain.sampling import SamplingDefaults
from layered_llm.domain.verdicts import RejectReason
from layered_llm.text.checkpoint_text import TextFiles
from layered_llm.text.preparation import LONG_WORK_CHARS, Prepared
from layered_llm.text.tokenizer import Tokenizer
from support.text_core import CoreBench, files
from support.text_tokenizers import BOS, EOS, byte_level, byte_level_pipeline, byte_level_with_bos, llama_style, wrap

TOKENIZER = byte_level()
LONG_CALL = ToolCall(name="f", arguments="x" * LONG_WORK_CHARS)
FILES = files(TOKENIZER)
EOS_ID = TOKENIZER.id_of(EOS) or 0


def run(
    prompt: Prompt, *, text_files: TextFiles = FILES, context: int = 100, vocabulary: int = 1000, **params: Any
) -> Prepared | Rejected:
    bench = CoreBench.of(text_files, EngineLimits(context_tokens=context, vocabulary_size=vocabulary))
    return bench.begin(prompt, **params).run()


def prepared(prompt: Prompt, **options: Any) -> Prepared:
    outcome = run(prompt, **options)
    assert isinstance(outcome, Prepared)
    return outcome


def rejected(prompt: Prompt, **options: Any) -> tuple[RejectReason, str | None, str]:
    outcome = run(prompt, **options)
    assert isinstance(outcome, Rejected)
    return outcome.reason, outcome.param, outcome.message


def chat(*contents: str | None) -> Prompt:
    return Prompt.of_chat([ChatMessage(role="user", content=content) for content in contents])


def test_a_text_is_encoded_with_special_tokens() -> None:
    tokenizer = byte_level_with_bos()
    outcome = prepared(Prompt.of_text("hello"), text_files=files(tokenizer))
    assert [tokenizer.id_of(BOS), tokenizer.id_of("hello")] == list(unpack_i32(outcome.admit.prompt_ids))


def test_a_request_without_stop_strings_needs_no_automaton() -> None:
    assert prepared(Prompt.of_text("hello")).stops is None


def test_a_chat_gets_no_second_bos() -> None:
    tokenizer = byte_level_with_bos()
    template = BOS + "{{ messages[0].content }}" + EOS
    outcome = prepared(chat("hello"), text_files=files(tokenizer, template=template))
    expected = [tokenizer.id_of(BOS), tokenizer.id_of("hello"), tokenizer.id_of(EOS)]
    assert expected == list(unpack_i32(outcome.admit.prompt_ids))


def test_chat_and_text_of_the_same_content_have_the_same_ids() -> None:
    assert prepared(Prompt.of_text("user:hello;")).admit.prompt_ids == prepared(chat("hello")).admit.prompt_ids


def test_a_request_decides_where_special_tokens_are_added() -> None:
    tokenizer = byte_level_with_bos()
    text_files, bos = files(tokenizer), tokenizer.id_of(BOS)
    bare = attrs.evolve(Prompt.of_text("hello"), add_special_tokens=False)
    doubled = attrs.evolve(chat("hello"), add_special_tokens=True)
    firsts = [unpack_i32(prepared(each, text_files=text_files).admit.prompt_ids)[0] for each in (bare, doubled)]
    assert [tokenizer.id_of("hello"), bos] == firsts


@pytest.mark.parametrize(
    ("keep", "max_tokens", "expected"),
    [(3, None, [7, 8, 9]), (50, None, list(range(10))), (WHOLE_CONTEXT, 4, [4, 5, 6, 7, 8, 9]), (WHOLE_CONTEXT, 50, [9])],
)
def test_a_prompt_that_may_be_cut_loses_its_beginning(keep: int, max_tokens: int | None, expected: list[int]) -> None:
    prompt = attrs.evolve(Prompt.of_token_ids(range(10)), keep_last_tokens=keep)
    context = 100 if max_tokens is None else 10
    assert expected == list(unpack_i32(prepared(prompt, context=context, max_tokens=max_tokens).admit.prompt_ids))


@pytest.mark.parametrize(("keep", "max_tokens", "expected"), [(3, None, [0, 1, 2]), (WHOLE_CONTEXT, 4, [0, 1, 2, 3, 4, 5])])
def test_a_prompt_that_is_cut_on_the_right_loses_its_end(keep: int, max_tokens: int | None, expected: list[int]) -> None:
    prompt = attrs.evolve(Prompt.of_token_ids(range(10)), keep_last_tokens=keep, keeps_beginning=True)
    context = 100 if max_tokens is None else 10
    assert expected == list(unpack_i32(prepared(prompt, context=context, max_tokens=max_tokens).admit.prompt_ids))


def test_what_is_kept_must_still_fit_the_context() -> None:
    prompt = attrs.evolve(Prompt.of_token_ids([1] * 20), keep_last_tokens=15)
    assert RejectReason.CONTEXT_LENGTH_EXCEEDED == rejected(prompt, context=10)[0]


def test_a_text_too_long_even_to_be_cut_is_not_encoded() -> None:
    reason, _, message = rejected(attrs.evolve(Prompt.of_text("x" * 100_000), keep_last_tokens=5))
    assert RejectReason.CONTEXT_LENGTH_EXCEEDED == reason
    assert "the prompt has at least 9091 tokens" in message
    assert 5 == len(unpack_i32(prepared(attrs.evolve(Prompt.of_text("x y" * 500), keep_last_tokens=5)).admit.prompt_ids))


def test_what_a_request_leaves_open_is_the_checkpoints() -> None:
    text_files = attrs.evolve(FILES, defaults=SamplingDefaults(temperature=0.0, top_k=5, max_tokens=7))
    open_sampling = prepared(Prompt.of_token_ids([1]), text_files=text_files).admit
    said = prepared(Prompt.of_token_ids([1]), text_files=text_files, temperature=1.0, top_k=0, max_tokens=9).admit
    assert [(0.0, 5, 7), (1.0, 0, 7)] == [
        (admit.sampling.temperature, admit.sampling.top_k, admit.max_tokens) for admit in (open_sampling, said)
    ]


def test_token_ids_pass_as_they_are() -> None:
    assert [5, 286, 0] == list(unpack_i32(prepared(Prompt.of_token_ids([5, 286, 0])).admit.prompt_ids))


@pytest.mark.parametrize("prompt", [Prompt.of_text(""), Prompt.of_token_ids([])])
def test_an_empty_prompt_is_rejected(prompt: Prompt) -> None:
    assert (RejectReason.EMPTY_PROMPT, "prompt") == rejected(prompt)[:2]


def test_a_chat_that_renders_to_nothing_is_rejected() -> None:
    assert (RejectReason.EMPTY_PROMPT, "messages") == rejected(chat(), text_files=files(TOKENIZER, template=""))[:2]


@pytest.mark.parametrize("token", [-1, 287, 1000, 2**31 - 1, -(2**31)])
def test_a_token_out_of_vocabulary_is_rejected(token: int) -> None:
    message = f"The prompt holds token id {token}, which is out of the vocabulary of 287 tokens."
    assert (RejectReason.TOKEN_OUT_OF_VOCABULARY, "prompt", message) == rejected(Prompt.of_token_ids([1, token, 2]))


def with_a_hole() -> TextFiles:
    """The byte-level tokenizer of these tests without the token 5."""
    spec = json.loads(byte_level_pipeline().to_str())
    spec["model"]["vocab"] = {piece: token for piece, token in spec["model"]["vocab"].items() if token != 5}
    return files(Tokenizer.from_json(json.dumps(spec)))


@pytest.mark.parametrize(
    ("reason", "param", "words", "request_of_5"),
    [
        (RejectReason.TOKEN_OUT_OF_VOCABULARY, "prompt", "The prompt holds token id 5", {"prompt": [1, 2, 5]}),
        (RejectReason.INVALID_PARAMETER, "stop_token_ids", "stop_token_ids holds 5", {"stop_token_ids": (2, 5)}),
        (RejectReason.INVALID_PARAMETER, "logit_bias", "logit_bias holds 5", {"logit_bias": {2: 1.0, 5: 1.0}}),
    ],
)
def test_an_id_within_the_vocabulary_that_no_token_has_is_rejected(
    reason: RejectReason, param: str, words: str, request_of_5: dict[str, Any]
) -> None:
    prompt = Prompt.of_token_ids(request_of_5.pop("prompt", [1]))
    message = f"{words}, which is no token of the tokenizer, though below 286."
    assert (reason, param, message) == rejected(prompt, text_files=with_a_hole(), **request_of_5)


@pytest.mark.parametrize(
    ("text_files", "vocabulary", "ranges"),
    [
        (FILES, 287, []),
        (FILES, 200, []),
        (FILES, 300, [287, 300]),
        (with_a_hole(), 300, [5, 6, 286, 300]),
        (with_a_hole(), 5, []),
    ],
)
def test_the_runtime_hears_which_of_the_models_ids_no_token_has(
    text_files: TextFiles, vocabulary: int, ranges: list[int]
) -> None:
    outcome = prepared(Prompt.of_token_ids([1]), text_files=text_files, vocabulary=vocabulary)
    assert ranges == list(unpack_i32(outcome.admit.sampling.missing_ranges))


def test_an_end_of_output_that_no_token_has_is_no_end() -> None:
    outcome = prepared(Prompt.of_token_ids([1]), text_files=files(TOKENIZER, eos_ids=[EOS_ID, 290, 2000]))
    assert (EOS_ID,) == outcome.admit.sampling.end_ids


def test_a_text_whose_tokens_the_model_lacks_is_rejected() -> None:
    assert (RejectReason.TOKEN_OUT_OF_VOCABULARY, "messages") == rejected(chat(EOS), vocabulary=EOS_ID)[:2]


def test_a_prompt_must_leave_room_for_one_token() -> None:
    assert 1 == prepared(Prompt.of_token_ids([1] * 99)).admit.max_tokens
    message = (
        "This model's maximum context length is 100 tokens, but the prompt has 100 tokens; "
        "it must leave room for at least one token of output."
    )
    assert (RejectReason.CONTEXT_LENGTH_EXCEEDED, "prompt", message) == rejected(Prompt.of_token_ids([1] * 100))


@pytest.mark.parametrize("kept", [None, WHOLE_CONTEXT])
def test_a_prompt_of_which_nothing_is_continued_may_fill_the_context(kept: int | None) -> None:
    prompt = attrs.evolve(Prompt.of_token_ids([1] * 100), keep_last_tokens=kept)
    outcome = prepared(prompt, max_tokens=0, echo=True)
    assert (100, 1) == (len(unpack_i32(outcome.admit.prompt_ids)), outcome.admit.max_tokens)
    message = "This model's maximum context length is 100 tokens, but the prompt has 101 tokens."
    assert message == rejected(Prompt.of_token_ids([1] * 101), max_tokens=0)[2]


def test_a_text_of_exactly_the_context_is_not_refused_by_its_length() -> None:
    text = " world" * 10
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert len(ids) == len(unpack_i32(prepared(Prompt.of_text(text), context=len(ids), max_tokens=0).admit.prompt_ids))


def test_a_chat_that_is_too_long_names_the_messages() -> None:
    reason, param, message = rejected(chat("x y" * 100))
    assert (RejectReason.CONTEXT_LENGTH_EXCEEDED, "messages") == (reason, param)
    assert "is 100 tokens, but the prompt has 306 tokens" in message


def test_a_text_far_too_long_is_rejected_before_it_is_encoded() -> None:
    reason, _, message = rejected(Prompt.of_text("x" * 100_000))
    assert RejectReason.CONTEXT_LENGTH_EXCEEDED == reason
    assert "the prompt has at least 9091 tokens" in message


def test_a_text_as_long_as_the_longest_tokens_fits() -> None:
    assert 99 == len(unpack_i32(prepared(Prompt.of_text("<tool call>" * 99)).admit.prompt_ids))


@pytest.mark.parametrize("make", [byte_level, llama_style])
def test_a_lone_surrogate_is_rejected(make: Any) -> None:
    for prompt, param in ((Prompt.of_text("a\ud800"), "prompt"), (chat("a\udfff"), "messages")):
        reason, named, message = rejected(prompt, text_files=files(make()))
        assert (RejectReason.INVALID_PARAMETER, param) == (reason, named)
        assert "half of a surrogate pair" in message


def test_a_template_that_fails_is_rejected_with_its_words() -> None:
    text_files = files(TOKENIZER, template="{{ raise_exception('Roles must alternate') }}")
    message = "The model's chat template cannot render these messages: Roles must alternate"
    assert (RejectReason.TEMPLATE_ERROR, "messages", message) == rejected(chat("a"), text_files=text_files)


def test_a_template_may_quote_a_lone_surrogate_and_much_else() -> None:
    text_files = files(TOKENIZER, template="{{ raise_exception(messages[0].content) }}")
    message = rejected(chat("\ud800" + "x" * 5000), text_files=text_files)[2]
    assert "cannot render these messages: ?" + "x" * 499 == message.removeprefix("The model's chat template ")


def test_a_chat_without_template_is_rejected_while_a_text_is_not() -> None:
    text_files = files(TOKENIZER, template=None)
    assert (RejectReason.NO_CHAT_TEMPLATE, "messages") == rejected(chat("a"), text_files=text_files)[:2]
    assert 1 == len(unpack_i32(prepared(Prompt.of_text("a"), text_files=text_files).admit.prompt_ids))


def test_null_content_is_taken() -> None:
    assert prepared(Prompt.of_text("user:;")).admit.prompt_ids == prepared(chat(None)).admit.prompt_ids


@pytest.mark.parametrize(("asked", "granted"), [(None, 90), (5, 5), (90, 90), (91, 90), (10_000, 90)])
def test_max_tokens_is_capped_to_the_context(asked: int | None, granted: int) -> None:
    assert granted == prepared(Prompt.of_token_ids([1] * 10), max_tokens=asked).admit.max_tokens


def test_min_tokens_is_capped_too() -> None:
    assert 90 == prepared(Prompt.of_token_ids([1] * 10), min_tokens=500).admit.sampling.min_tokens


def test_end_ids_are_eos_and_stop_token_ids() -> None:
    prompt = Prompt.of_token_ids([1])
    text_files = files(TOKENIZER, eos_ids=[9, 3, 5000])
    assert (3, 9) == prepared(prompt, text_files=text_files).admit.sampling.end_ids
    assert (3, 4, 9) == prepared(prompt, text_files=text_files, stop_token_ids=(9, 4, 4)).admit.sampling.end_ids


def test_ignore_eos_ignores_every_eos() -> None:
    text_files = files(TOKENIZER, eos_ids=[9, 3])
    outcome = prepared(Prompt.of_token_ids([1]), text_files=text_files, ignore_eos=True, stop_token_ids=(3,))
    assert (3,) == outcome.admit.sampling.end_ids


def test_a_stop_token_id_out_of_vocabulary_is_rejected() -> None:
    message = "stop_token_ids holds 1000, which is out of the vocabulary of 287 tokens."
    expected = (RejectReason.INVALID_PARAMETER, "stop_token_ids", message)
    assert expected == rejected(Prompt.of_token_ids([1]), stop_token_ids=(4, 1000))


def test_a_biased_id_out_of_vocabulary_is_rejected() -> None:
    message = "logit_bias holds 1000, which is out of the vocabulary of 287 tokens."
    expected = (RejectReason.INVALID_PARAMETER, "logit_bias", message)
    assert expected == rejected(Prompt.of_token_ids([1]), logit_bias={4: 1.0, 1000: 0.0})


def test_an_allowed_id_out_of_vocabulary_is_rejected() -> None:
    message = f"allowed_token_ids holds 1000, which is out of the vocabulary of {TOKENIZER.vocabulary_size} tokens."
    expected = (RejectReason.INVALID_PARAMETER, "allowed_token_ids", message)
    assert expected == rejected(Prompt.of_token_ids([1]), allowed_token_ids=(4, 1000))


def test_allowed_ids_that_may_not_be_sampled_yet_are_rejected() -> None:
    reason, param, _ = rejected(Prompt.of_token_ids([1]), allowed_token_ids=(EOS_ID,), min_tokens=1)
    assert (RejectReason.INVALID_PARAMETER, "allowed_token_ids") == (reason, param)
    for fine in ({"allowed_token_ids": (EOS_ID,)}, {"allowed_token_ids": (EOS_ID, 3), "min_tokens": 1}):
        assert isinstance(run(Prompt.of_token_ids([1]), **fine), Prepared)


def spelled_as_vllm_does(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Written after vLLM's `SamplingParams.update_from_tokenizer`."""
    found: list[list[int]] = []
    for word in words:
        for prefix in ("", " "):
            ids = tokenizer.encode(prefix + word.lstrip(), add_special_tokens=False)
            if not prefix or (ids[0] != found[-1][0] and len(ids) == len(found[-1])):
                found.append(ids)
    return found


@pytest.mark.parametrize("tokenizer", [byte_level(), llama_style()])
def test_bad_words_have_the_tokens_that_vllm_gives_them(tokenizer: Tokenizer) -> None:
    words = ("world", " world", "hello", "the end", "xyz", "a")
    outcome = prepared(Prompt.of_token_ids([1]), text_files=files(tokenizer), bad_words=words)
    expected = spelled_as_vllm_does(tokenizer, words)
    assert expected == [list(unpack_i32(word)) for word in outcome.admit.sampling.bad_words]
    assert len(expected) > len(words) or tokenizer is not TOKENIZER


def test_a_bad_word_without_tokens_is_rejected() -> None:
    tokenizer = wrap(byte_level_pipeline(missing=b"z"))
    reason, param, message = rejected(Prompt.of_token_ids([1]), text_files=files(tokenizer), bad_words=("a", "zz"))
    assert (RejectReason.INVALID_PARAMETER, "bad_words") == (reason, param)
    assert "'zz', which has no tokens" in message


def test_penalties_and_biases_are_passed_on() -> None:
    params = {"top_n_sigma": 1.5, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.4}
    sampling = prepared(Prompt.of_token_ids([1]), logit_bias={4: 1.5, 2: -100.0}, **params).admit.sampling
    assert params == {name: getattr(sampling, name) for name in params}
    assert ([4, 2], [1.5, -100.0]) == (list(unpack_i32(sampling.biased_ids)), list(unpack_f32(sampling.biases)))


def test_more_prompt_logprobs_than_an_api_process_words_in_passing_are_rejected() -> None:
    prompt = Prompt.of_token_ids([1] * 12_000)
    assert prepared(prompt, context=1 << 20, prompt_logprobs=20).admit.sampling.prompt_logprobs == 20
    reason, param, message = rejected(prompt, context=1 << 20, prompt_logprobs=20, n=2)
    assert (RejectReason.INVALID_PARAMETER, "prompt_logprobs") == (reason, param)
    assert "504000 log probabilities" in message
    assert "At most 262144" in message


def test_sampling_is_passed_on() -> None:
    outcome = prepared(Prompt.of_token_ids([1]), temperature=0.7, top_p=0.9, top_k=40, seed=-5, n=3)
    sampling = outcome.admit.sampling
    assert (3, 0.7, 0.9, 40, -5) == (outcome.admit.choices, sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed)


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_greedy_is_temperature_zero(temperature: float) -> None:
    assert 0.0 == prepared(Prompt.of_token_ids([1]), temperature=temperature).admit.sampling.temperature


@pytest.mark.parametrize(
    ("prompt", "stop", "is_long"),
    [
        (Prompt.of_text("x" * LONG_WORK_CHARS), (), False),
        (Prompt.of_text("x" * (LONG_WORK_CHARS + 1)), (), True),
        (chat("x" * 100, None, "y" * 100), (), False),
        (chat("x" * 2000, "y" * 2000), (), True),
        (chat(*["hi"] * 100), (), True),
        (Prompt.of_chat([ChatMessage(role="user", content="hi", name="x" * LONG_WORK_CHARS)]), (), True),
        (Prompt.of_token_ids([1] * 8 * LONG_WORK_CHARS), (), False),
        (Prompt.of_token_ids([1] * 9 * LONG_WORK_CHARS), (), True),
        (Prompt.of_text("x"), ("y" * 1024, "z" * 1024), True),
        (Prompt.of_chat([], Rendering(variables="x" * (LONG_WORK_CHARS + 1))), (), True),
        (Prompt.of_chat([ChatMessage(role="assistant", content=None, tool_calls=(LONG_CALL,))]), (), True),
    ],
)
def test_long_work_is_known_beforehand(prompt: Prompt, stop: tuple[str, ...], is_long: bool) -> None:
    assert is_long == (CoreBench.of(FILES).begin(prompt, stop=stop).cost_chars > LONG_WORK_CHARS)


@pytest.mark.parametrize("prompt", [Prompt.of_text("hell" * 500), Prompt.of_token_ids([1] * 500)], ids=["text", "ids"])
def test_places_of_tokens_in_an_echo_are_work_too(prompt: Prompt) -> None:
    echoed, placed = (
        CoreBench.of(FILES).begin(prompt, echo=True, prompt_logprobs=logprobs).cost_chars for logprobs in (None, 0)
    )
    assert 500 * 8 == placed - echoed


def test_an_echo_of_token_ids_is_work_too() -> None:
    prompt = Prompt.of_token_ids([1] * LONG_WORK_CHARS)
    assert CoreBench.of(FILES).begin(prompt, echo=True).cost_chars > LONG_WORK_CHARS
