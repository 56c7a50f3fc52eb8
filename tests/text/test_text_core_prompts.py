import attrs
import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.api_text import Accepted
from layered_llm.domain.messages.prompts import ChatMessage, Prompt
from layered_llm.domain.stream import Usage
from support.logprobs import columns_of, pairs_of
from support.text_core import CoreBench
from support.text_tokenizers import EOS, byte_level

TOKENIZER = byte_level()
HELLO, A, EOS_ID = (TOKENIZER.id_of(token) or 0 for token in ("hello", "a", EOS))


def test_an_echo_begins_the_text_of_each_choice() -> None:
    bench = CoreBench.of()
    request = bench.open(Prompt.of_text("hello  "), n=2, echo=True)
    bench.tokens((request, 0, 0, A), (request, 1, 0, HELLO))
    bench.tokens((request, 0, 1, A))
    assert ["hello  aa", "hello  hello"] == [choice.text for choice in bench.views[request].choices]
    assert [[A, A], [HELLO]] == [choice.token_ids for choice in bench.views[request].choices]


@pytest.mark.parametrize("skips", [True, False])
def test_an_echo_of_token_ids_spells_all_of_them(skips: bool) -> None:
    """Special ones too, as the offsets of the log probabilities count them; only the output may leave them out."""
    bench = CoreBench.of()
    request = bench.open(Prompt.of_token_ids([HELLO, EOS_ID, A]), echo=True, skip_special_tokens=skips)
    bench.tokens((request, 0, 0, A))
    assert f"hello{EOS}aa" == bench.views[request].only.text


@pytest.mark.parametrize(("role", "expected"), [("assistant", "So a"), ("user", "a")])
def test_an_echo_of_a_chat_is_the_assistants_last_turn(role: str, expected: str) -> None:
    bench = CoreBench.of()
    request = bench.open(Prompt.of_chat([ChatMessage(role=role, content="So ")]), echo=True)
    bench.tokens((request, 0, 0, A))
    assert expected == bench.views[request].only.text


def test_an_echo_of_a_text_that_was_cut_is_what_is_left_of_it() -> None:
    bench = CoreBench.of()
    request = bench.open(attrs.evolve(Prompt.of_text("hello world"), keep_last_tokens=1), echo=True)
    bench.tokens((request, 0, 0, A))
    assert " worlda" == bench.views[request].only.text


def test_a_stop_string_in_an_echo_stops_nothing() -> None:
    bench = CoreBench.of()
    request = bench.open(Prompt.of_text("hello"), echo=True, stop=("hello", "oa"))
    bench.tokens((request, 0, 0, A))
    assert ("helloa", FinishReason.RUNNING) == (bench.views[request].only.text, bench.views[request].only.reason)


def test_a_prompt_alone_hides_the_token_that_is_sampled() -> None:
    bench = CoreBench.of()
    request = bench.open(Prompt.of_text("hello"), echo=True, max_tokens=0, stop_token_ids=(A,))
    (admit,) = bench.admits
    assert (1, ()) == (admit.max_tokens, admit.sampling.end_ids)
    bench.tokens((request, 0, 0, A))
    bench.finish((request, 0, FinishReason.LENGTH, 1))
    view = bench.views[request]
    assert ("hello", [], FinishReason.LENGTH) == (view.only.text, view.only.token_ids, view.only.reason)
    assert Usage(prompt_tokens=1, completion_tokens=0, cached_tokens=0) == view.usage
    bench.assert_quiescent()


def test_prompt_logprobs_are_not_found_in_a_cache() -> None:
    bench = CoreBench.of()
    bench.admit(prompt_logprobs=2)
    bench.admit()
    assert [(2, False), (None, True)] == [(admit.sampling.prompt_logprobs, admit.reads_cache) for admit in bench.admits]


def test_prompt_logprobs_come_with_the_row_of_the_first_token_and_their_bytes() -> None:
    bench = CoreBench.of()
    plain, asked = bench.open(), bench.open(prompt_logprobs=1, logprobs=0)
    prompt = columns_of([[(HELLO, 0.0)], [(A, -1.0), (EOS_ID, -0.5)]])
    bench.tokens((plain, 0, 0, A), (asked, 0, 0, HELLO), logprobs=[[], [(HELLO, -2.0)]], prompts=[None, prompt])
    (message,) = bench.emitted
    assert [1, 1] == list(unpack_i32(message.token_counts))
    assert message.prompt_logprobs is not None
    assert [None, prompt] == list(message.prompt_logprobs)
    assert (b"hello", b"a", EOS.encode()) == message.prompt_logprob_tokens
    assert [[], [(HELLO, -2.0)]] == pairs_of(message.logprobs)


def test_a_request_that_was_left_is_told_nothing_of_its_prompt() -> None:
    bench = CoreBench.of()
    request = bench.open(prompt_logprobs=0, echo=True)
    bench.abort(request)
    bench.tokens((request, 0, 0, A), prompts=[columns_of([[(HELLO, 0.0)]])])
    assert [] == bench.emitted


def test_a_verdict_has_the_prompts_ids_where_they_are_asked_for() -> None:
    bench = CoreBench.of()
    told, untold = bench.open(Prompt.of_text("hello"), tells_prompt_ids=True), bench.open(Prompt.of_text("hello"))
    verdicts = [bench.views[request].verdict for request in (told, untold)]
    assert [[HELLO], []] == [list(unpack_i32(verdict.prompt_ids)) for verdict in verdicts if isinstance(verdict, Accepted)]
