import json
from functools import partial

import attrs
import pytest

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.finish import AbortReason
from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.api_text import (
    MAX_TOLD_TOKENS,
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Rejected,
    TextAnswer,
    Tokenize,
    Tokenized,
    TokenizerDescribed,
)
from layered_llm.domain.messages.prompts import ChatMessage, Prompt
from layered_llm.domain.verdicts import RejectReason
from layered_llm.testing.byte_text import END, END_ID, byte_text_files
from layered_llm.text.preparation import LONG_WORK_CHARS
from layered_llm.text.questions import MAX_ASKED_CHARS
from support.text_core import API, LIMITS, OTHER_API, CoreBench


def bench() -> CoreBench:
    return CoreBench.of(byte_text_files())


def ids(answer: TextAnswer | Rejected) -> list[int]:
    assert isinstance(answer, Tokenized)
    return unpack_i32(answer.token_ids).tolist()


def tokenize(prompt: Prompt, *, with_spellings: bool = False) -> partial[Tokenize]:
    return partial(_tokenize, prompt, with_spellings)


def _tokenize(prompt: Prompt, with_spellings: bool, request: RequestId) -> Tokenize:
    return Tokenize(request=request, prompt=prompt, with_spellings=with_spellings)


def detokenize(*token_ids: int, skip_special_tokens: bool = False) -> partial[Detokenize]:
    return partial(_detokenize, pack_i32(token_ids), skip_special_tokens)


def _detokenize(token_ids: bytes, skip_special_tokens: bool, request: RequestId) -> Detokenize:
    return Detokenize(request=request, token_ids=token_ids, skip_special_tokens=skip_special_tokens)


def describe(request: RequestId) -> DescribeTokenizer:
    return DescribeTokenizer(request=request)


def test_a_text_has_the_tokens_that_a_completion_makes_of_it() -> None:
    core = bench()
    core.admit(Prompt.of_text("é!"))

    assert (
        list("é!".encode()) == ids(core.answer(tokenize(Prompt.of_text("é!")))) == list(unpack_i32(core.admits[0].prompt_ids))
    )


def test_a_conversation_has_the_tokens_that_a_chat_makes_of_it() -> None:
    core, prompt = bench(), Prompt.of_chat([ChatMessage(role="user", content="hi")])
    core.admit(prompt)

    assert list(b"user: hi\n") == ids(core.answer(tokenize(prompt))) == list(unpack_i32(core.admits[0].prompt_ids))


def test_an_empty_text_has_no_tokens() -> None:
    assert [] == ids(bench().answer(tokenize(Prompt.of_text(""))))


def test_spellings_are_those_of_the_vocabulary() -> None:
    answer = bench().answer(tokenize(Prompt.of_text(f"a {END}"), with_spellings=True))

    assert isinstance(answer, Tokenized)
    assert ("a", "\u0120", END) == answer.spellings


def test_a_text_beyond_the_context_is_counted_all_the_same() -> None:
    text = "x" * (LIMITS.context_tokens * 10)

    assert len(text) == len(ids(bench().answer(tokenize(Prompt.of_text(text)))))


@pytest.mark.parametrize("chars", [MAX_TOLD_TOKENS + 1, 100 * MAX_TOLD_TOKENS])
def test_more_tokens_than_one_message_has_are_refused(chars: int) -> None:
    answer = bench().answer(tokenize(Prompt.of_text("x" * chars)))

    assert isinstance(answer, Rejected)
    assert (RejectReason.INVALID_PARAMETER, "prompt") == (answer.reason, answer.param)


@pytest.mark.parametrize(
    ("chars", "reason"), [(MAX_ASKED_CHARS, "more than 131072 tokens"), (MAX_ASKED_CHARS + 1, "characters")]
)
def test_a_text_that_is_too_long_is_refused_before_it_is_tokenized(chars: int, reason: str) -> None:
    answer = bench().answer(tokenize(Prompt.of_text("x" * chars)))

    assert isinstance(answer, Rejected)
    assert reason in answer.message


def test_a_template_that_fails_refuses_the_conversation() -> None:
    core = CoreBench.of(attrs.evolve(byte_text_files(), template=None))

    answer = core.answer(tokenize(Prompt.of_chat([ChatMessage(role="user", content="hi")])))

    assert isinstance(answer, Rejected)
    assert (RejectReason.NO_CHAT_TEMPLATE, "messages") == (answer.reason, answer.param)


@pytest.mark.parametrize(("skip", "text"), [(False, f"a{END}é"), (True, "aé")])
def test_tokens_have_the_text_that_they_are_decoded_to(skip: bool, text: str) -> None:
    answer = bench().answer(detokenize(ord("a"), END_ID, *"é".encode(), skip_special_tokens=skip))

    assert isinstance(answer, Detokenized)
    assert text == answer.text


@pytest.mark.parametrize("token", [-1, 1000, (1 << 31) - 1])
def test_a_token_out_of_the_vocabulary_is_refused(token: int) -> None:
    answer = bench().answer(detokenize(ord("a"), token))

    assert isinstance(answer, Rejected)
    assert (RejectReason.TOKEN_OUT_OF_VOCABULARY, "tokens") == (answer.reason, answer.param)


def test_the_description_is_what_the_files_say() -> None:
    files = attrs.evolve(byte_text_files(), config=json.dumps({"eos_token": END}))

    answer = CoreBench.of(files).answer(describe)

    assert isinstance(answer, TokenizerDescribed)
    assert {"eos_token": END} == json.loads(answer.config)


def test_nothing_is_left_of_a_question_that_was_answered() -> None:
    core = bench()
    core.answer(tokenize(Prompt.of_text("a")))
    core.answer(detokenize(-1))

    core.assert_quiescent()
    assert 1 == core.core.statistics().counters.questions_answered


def test_a_question_that_was_left_is_not_wanted_and_not_answered() -> None:
    core = bench()
    answering = core.ask(tokenize(Prompt.of_text("a")))
    assert core.core.is_wanted(answering.request, 0)

    core.abort(answering.request)

    assert not core.core.is_wanted(answering.request, 0)
    assert () == core.take(core.core.prepared(answering.request, answering.run())).to_api
    assert 1 == core.core.statistics().counters.aborts_handled
    core.assert_quiescent()


def test_an_abort_behind_the_answer_is_late() -> None:
    core = bench()
    answering = core.ask(describe)
    core.take(core.core.prepared(answering.request, answering.run()))

    core.abort(answering.request)

    assert 1 == core.core.statistics().counters.aborts_late
    core.assert_quiescent()


@pytest.mark.parametrize(("reason", "told"), [(AbortReason.PEER_DIED, 0), (AbortReason.SLOW_CONSUMER, 1)])
def test_an_api_that_is_gone_takes_its_questions_along(reason: AbortReason, told: int) -> None:
    core = bench()
    mine, other = core.ask(describe), core.ask(describe, api=OTHER_API)

    outgoing = core.take(core.core.api_gone(API, reason))

    assert told == len(outgoing.to_api)
    assert [False, True] == [core.core.is_wanted(answering.request, 0) for answering in (mine, other)]


@pytest.mark.parametrize(
    ("question", "is_long"),
    [
        (tokenize(Prompt.of_text("x" * LONG_WORK_CHARS)), False),
        (tokenize(Prompt.of_text("x" * LONG_WORK_CHARS), with_spellings=True), True),
        (tokenize(Prompt.of_text("x" * (LONG_WORK_CHARS + 1))), True),
        (detokenize(*[1] * LONG_WORK_CHARS), True),
        (detokenize(1, 2), False),
        (describe, False),
    ],
)
def test_long_work_is_known_before_it_is_done(question: partial[Tokenize], is_long: bool) -> None:
    assert is_long == (bench().ask(question).cost_chars > LONG_WORK_CHARS)
