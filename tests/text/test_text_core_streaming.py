import itertools
from collections.abc import Iterator, Sequence

import pytest

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.api_text import Accepted
from layered_llm.domain.messages.prompts import Prompt
from layered_llm.domain.messages.text_scheduler import Queued, StopChoice
from layered_llm.domain.stream import Usage
from layered_llm.text.tokenizer import Tokenizer
from support.text_core import API, OTHER_API, CoreBench, files
from support.text_tokenizers import EOS, byte_level, byte_level_pipeline, llama_style, wrap

TOKENIZER = byte_level()
EOS_ID = TOKENIZER.id_of(EOS) or 0
STOP, LENGTH, RUNNING = FinishReason.STOP, FinishReason.LENGTH, FinishReason.RUNNING


def encode(text: str, tokenizer: Tokenizer = TOKENIZER) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_accepted_tells_the_prompt_tokens() -> None:
    bench = CoreBench.of()
    request = bench.open(Prompt.of_text("ab"))
    assert Accepted(request=request, prompt_tokens=2) == bench.views[request].verdict


def test_a_request_streams_to_its_end() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.tokens((request, 0, 0, encode("hello")[0]), cached=1)
    bench.tokens((request, 0, 1, encode("a")[0]))
    bench.finish((request, 0, LENGTH, 2))
    view = bench.views[request]
    assert (["hello", "a", ""], encode("helloa"), LENGTH, None) == (
        view.only.pushes,
        view.only.token_ids,
        view.only.reason,
        view.only.matched_stop,
    )
    assert (Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=1), None) == (view.usage, view.error)
    bench.assert_quiescent()


def test_every_step_is_acknowledged_even_without_a_row() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.stream(request, encode("ab"))
    bench.tokens()
    assert [1, 2, 3] == bench.credits


def test_an_eos_counts_and_is_not_shown() -> None:
    for skip in (True, False):
        bench = CoreBench.of()
        request = bench.open(skip_special_tokens=skip)
        bench.stream(request, [*encode("ab"), EOS_ID])
        bench.finish((request, 0, STOP, 3))
        view = bench.views[request]
        assert ("ab", [*encode("ab"), EOS_ID], STOP, None) == (
            view.only.text,
            view.only.token_ids,
            view.only.reason,
            view.only.matched_stop,
        )
        assert view.usage is not None
        assert 3 == view.usage.completion_tokens


def test_a_stop_token_counts_is_told_and_is_not_shown() -> None:
    bench = CoreBench.of()
    (stop,) = encode("b")
    request = bench.open(stop_token_ids=(stop,))
    bench.stream(request, encode("ab"))
    bench.finish((request, 0, STOP, 2))
    view = bench.views[request].only
    assert ("a", encode("ab"), STOP, stop) == (view.text, view.token_ids, view.reason, view.matched_stop)


def test_a_stop_token_is_shown_when_stops_are_included() -> None:
    bench = CoreBench.of()
    (stop,) = encode("b")
    request = bench.open(stop_token_ids=(stop,), include_stop_str_in_output=True)
    bench.stream(request, encode("ab"))
    bench.finish((request, 0, STOP, 2))
    assert ("ab", stop) == (bench.views[request].only.text, bench.views[request].only.matched_stop)


def test_an_eos_named_as_stop_token_is_an_eos_unless_eos_is_ignored() -> None:
    for ignore_eos, matched in ((False, None), (True, EOS_ID)):
        bench = CoreBench.of()
        request = bench.open(stop_token_ids=(EOS_ID,), ignore_eos=ignore_eos)
        bench.stream(request, [EOS_ID])
        bench.finish((request, 0, STOP, 1))
        assert matched == bench.views[request].only.matched_stop


def test_an_ignored_eos_is_a_token_like_any_other() -> None:
    bench = CoreBench.of()
    request = bench.open(ignore_eos=True, skip_special_tokens=False)
    bench.stream(request, [EOS_ID, *encode("a")])
    bench.finish((request, 0, LENGTH, 2))
    assert f"{EOS}a" == bench.views[request].only.text


def test_special_tokens_are_skipped_by_default() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.stream(request, encode("<|begin|>a<tool call>"))
    bench.finish((request, 0, LENGTH, 3))
    assert "a<tool call>" == bench.views[request].only.text


def test_an_incomplete_character_is_flushed_with_the_finish_row() -> None:
    bench = CoreBench.of()
    request = bench.open()
    ids = encode("a🙂")[:-1]
    bench.stream(request, ids)
    assert "a" == bench.views[request].only.text
    bench.finish((request, 0, LENGTH, len(ids)))
    assert ("a\ufffd", ids) == (bench.views[request].only.text, bench.views[request].only.token_ids)


def test_a_held_stop_prefix_is_flushed_with_the_finish_row() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("bcd",))
    bench.stream(request, encode("abc"))
    assert ["a", "", ""] == bench.views[request].only.pushes
    bench.finish((request, 0, LENGTH, 3))
    assert ("abc", LENGTH, None) == (
        bench.views[request].only.text,
        bench.views[request].only.reason,
        bench.views[request].only.matched_stop,
    )


def test_a_stop_string_that_the_flush_completes_has_the_last_word() -> None:
    tokenizer = llama_style()
    ids = [tokenizer.id_of(token) or 0 for token in ("a", "<0xC3>", "<0xA4>")]
    bench = CoreBench.of(files(tokenizer))
    request = bench.open(stop=("ä",))
    bench.stream(request, ids)
    assert [] == bench.stops
    bench.finish((request, 0, LENGTH, 3))
    view = bench.views[request].only
    assert ("a", STOP, "ä", ids) == (view.text, view.reason, view.matched_stop, view.token_ids)


def test_a_stop_string_ends_the_choice_at_once() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("xyz",))
    bench.stream(request, encode("axy"))
    bench.tokens((request, 0, 3, encode("z")[0]))
    view = bench.views[request]
    assert ("a", encode("axyz"), STOP, "xyz") == (view.only.text, view.only.token_ids, view.only.reason, view.only.matched_stop)
    assert (Usage(prompt_tokens=1, completion_tokens=4, cached_tokens=0), None) == (view.usage, view.error)
    assert [StopChoice(request=request, choice=0, output_tokens=4)] == bench.stops


def test_a_stop_hit_and_its_end_share_one_message_behind_the_stop_order() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("b",))
    bench.tokens((request, 0, 0, encode("b")[0]))
    (message,) = bench.emitted
    assert (1, 1) == (len(message.texts), len(message.ended_errors))
    assert ["StopChoice", "StepsTaken"] == [type(order).__name__ for order in bench.orders[1:]]


def test_tokens_behind_a_stop_string_are_dropped_until_the_scheduler_confirms() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("b",))
    bench.stream(request, encode("abxyz"))
    assert ("a", encode("ab")) == (bench.views[request].only.text, bench.views[request].only.token_ids)
    assert 1 == bench.core.statistics().open_requests
    bench.finish((request, 0, STOP, 2))
    bench.assert_quiescent()


@pytest.mark.parametrize(("reason", "tokens"), [(LENGTH, 3), (STOP, 3), (FinishReason.ERROR, 1), (FinishReason.ABORT, 1)])
def test_whatever_the_scheduler_says_behind_a_stop_string_changes_nothing(reason: FinishReason, tokens: int) -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("b",))
    bench.stream(request, encode("bxy"))
    bench.finish((request, 0, reason, tokens))
    assert (STOP, "b", None) == (
        bench.views[request].only.reason,
        bench.views[request].only.matched_stop,
        bench.views[request].error,
    )
    bench.assert_quiescent()


def substrings(text: str) -> list[str]:
    return [text[start:end] for start, end in itertools.combinations(range(len(text) + 1), 2)]


def segmentations(text: str) -> Iterator[list[str]]:
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        edges = [0, *(place for place, cut in enumerate(cuts, 1) if cut), len(text)]
        yield [text[start:end] for start, end in itertools.pairwise(edges)]


def run_segmented(tokenizer: Tokenizer, pieces: Sequence[str], *, includes: bool) -> tuple[str, int, str | int | None]:
    """(text, tokens that count, matched stop) when each piece is one token."""
    bench = CoreBench.of(files(tokenizer, eos_ids=[]))
    request = bench.open(stop=("END", "ENxy", "Dx"), include_stop_str_in_output=includes)
    bench.stream(request, [tokenizer.id_of(piece) or 0 for piece in pieces])
    if not bench.stops:
        bench.finish((request, 0, LENGTH, len(pieces)))
    view = bench.views[request]
    assert view.usage is not None
    assert len(view.only.token_ids) == view.usage.completion_tokens
    return view.only.text, len(view.only.token_ids), view.only.matched_stop


@pytest.mark.parametrize("text", ["abENDcd", "aENENDx", "ENENxyz", "abENcd"])
def test_stop_strings_in_all_splits(text: str) -> None:
    tokenizer = wrap(byte_level_pipeline(words=substrings(text)))
    found = [(text.find(stop) + len(stop), stop) for stop in ("END", "ENxy") if stop in text]
    end, stop = min(found, default=(len(text), None))
    for pieces, includes in itertools.product(segmentations(text), (False, True)):
        shown = text[:end] if includes or stop is None else text[: end - len(stop)]
        counted = next(count for count in range(1, len(pieces) + 1) if len("".join(pieces[:count])) >= end)
        assert (shown, counted, stop) == run_segmented(tokenizer, pieces, includes=includes)


def test_a_stop_string_before_min_tokens_is_passed_over() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("b",), min_tokens=3)
    bench.stream(request, encode("abab"))
    view = bench.views[request].only
    assert ("aba", encode("abab"), "b") == (view.text, view.token_ids, view.matched_stop)


def test_choices_end_one_by_one_and_the_request_once() -> None:
    bench = CoreBench.of()
    a, b, x = encode("abx")
    request = bench.open(n=3, stop=("b",))
    bench.tokens((request, 0, 0, a), (request, 1, 0, b), (request, 2, 0, x), cached=0)
    bench.tokens((request, 0, 1, EOS_ID), (request, 1, 1, x), (request, 2, 1, a))
    bench.finish((request, 0, STOP, 2))
    assert bench.views[request].usage is None
    bench.finish((request, 1, STOP, 1))
    bench.tokens((request, 2, 2, b))
    view = bench.views[request]
    assert ["a", "", "xa"] == [choice.text for choice in view.choices]
    assert [[a, EOS_ID], [b], [x, a, b]] == [choice.token_ids for choice in view.choices]
    assert Usage(prompt_tokens=1, completion_tokens=6, cached_tokens=0) == view.usage
    assert 1 == bench.core.statistics().open_requests
    bench.finish((request, 2, STOP, 3))
    bench.assert_quiescent()


def test_cached_tokens_are_what_the_least_lucky_choice_was_spared() -> None:
    bench = CoreBench.of()
    request = bench.open(Prompt.of_token_ids([1] * 32), n=2)
    bench.tokens((request, 0, 0, 1), cached=16)
    bench.tokens((request, 1, 0, 1), cached=31)
    bench.finish((request, 0, LENGTH, 1), (request, 1, LENGTH, 1))
    assert Usage(prompt_tokens=32, completion_tokens=2, cached_tokens=16) == bench.views[request].usage


def test_one_message_for_each_api_that_has_rows() -> None:
    bench = CoreBench.of()
    mine, other = bench.open(), bench.open(api=OTHER_API)
    outgoing_before = len(bench.emitted)
    bench.tokens((mine, 0, 0, 1), (other, 0, 0, 2))
    assert [1, 1] == [len(message.texts) for message in bench.emitted[outgoing_before:]]
    assert ([1], [2]) == (bench.views[mine].only.token_ids, bench.views[other].only.token_ids)


def test_tokens_of_one_choice_in_one_step_share_a_row() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("bc",))
    bench.tokens(*((request, 0, position, token) for position, token in enumerate(encode("abcd"))))
    (message,) = bench.emitted
    assert (("a",), [3]) == (message.texts, list(unpack_i32(message.token_counts)))
    assert [StopChoice(request=request, choice=0, output_tokens=3)] == bench.stops


def test_an_error_ends_the_request_with_a_sentence_and_what_was_held() -> None:
    bench = CoreBench.of()
    request = bench.open(stop=("bc",), n=2)
    bench.tokens((request, 0, 0, encode("b")[0]), (request, 1, 0, EOS_ID))
    bench.finish((request, 0, FinishReason.ERROR, 1), (request, 1, STOP, 1))
    view = bench.views[request]
    assert ("b", FinishReason.ERROR) == (view.choices[0].text, view.choices[0].reason)
    sentence = "The model computed numbers for this request that are not finite (NaN or infinity), so it was ended."
    assert sentence == view.error
    bench.assert_quiescent()


def test_an_abort_that_nobody_here_asked_for_is_told() -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.finish((request, 0, FinishReason.ABORT, 0))
    view = bench.views[request]
    assert (FinishReason.ABORT, Usage(prompt_tokens=1, completion_tokens=0, cached_tokens=0), None) == (
        view.only.reason,
        view.usage,
        view.error,
    )
    bench.assert_quiescent()


def test_what_the_scheduler_cannot_say_is_our_own_fault() -> None:
    a = encode("a")[0]

    def fails(*, position: int = 0, choice: int = 0, ahead: int = 0) -> None:
        bench = CoreBench.of()
        request = bench.open()
        bench.stream(request, [a] * ahead)
        with pytest.raises(InvariantViolated):
            bench.tokens((request, choice, position, a))

    fails(position=1)
    fails(position=0, ahead=1)
    fails(position=2, ahead=1)
    fails(choice=1)
    fails(choice=-1)


@pytest.mark.parametrize(("reason", "tokens"), [(RUNNING, 1), (LENGTH, 2), (LENGTH, 0), (STOP, 1)])
def test_a_finish_that_does_not_fit_the_tokens_is_our_own_fault(reason: FinishReason, tokens: int) -> None:
    bench = CoreBench.of()
    request = bench.open()
    bench.stream(request, encode("a"))
    with pytest.raises(InvariantViolated):
        bench.finish((request, 0, reason, tokens))


def test_words_about_an_unknown_or_confirmed_choice_are_our_own_fault() -> None:
    bench = CoreBench.of()
    request = bench.open(n=2)
    bench.stream(request, [EOS_ID])
    bench.finish((request, 0, STOP, 1))
    with pytest.raises(InvariantViolated):
        bench.finish((request, 0, STOP, 1))
    with pytest.raises(InvariantViolated):
        bench.tokens((request, 0, 1, 1))
    bench.stream(request, [EOS_ID], choice=1)
    bench.finish((request, 1, STOP, 1))
    with pytest.raises(InvariantViolated):
        bench.tokens((request, 1, 1, 1))
    with pytest.raises(InvariantViolated):
        bench.hear(Queued(request=request))


def test_tokens_before_queued_are_our_own_fault() -> None:
    bench = CoreBench.of()
    request = bench.admit()
    with pytest.raises(InvariantViolated):
        bench.tokens((request, 0, 0, 1))


def test_statistics_count_what_was_told() -> None:
    bench = CoreBench.of()
    first, second = bench.open(stop=("b",)), bench.open()
    bench.stream(first, encode("ab"))
    bench.stream(second, [1])
    bench.finish((first, 0, STOP, 2), (second, 0, LENGTH, 1))
    statistics = bench.core.statistics()
    assert (2, 2, 2, 3, 1, 3) == (
        statistics.counters.requests_submitted,
        statistics.counters.requests_accepted,
        statistics.counters.prompt_tokens,
        statistics.counters.generation_tokens,
        statistics.counters.stop_strings_matched,
        statistics.counters.steps_taken,
    )
    assert {STOP: 1, LENGTH: 1} == statistics.counters.finished
    assert API == first >> 32


@pytest.mark.parametrize("known", range(1, 6))
def test_a_request_with_tokens_so_far_goes_on_with_their_text(known: int) -> None:
    tokens = [*encode("aé"), *encode("hello b")]
    whole = CoreBench.of()
    request = whole.open(stop=("lo b",))
    whole.stream(request, tokens[:-1])
    pushes = whole.views[request].only.pushes
    bench = CoreBench.of()
    resumed = bench.open(stop=("lo b",), output_ids=(pack_i32(tokens[:known]),))

    bench.stream(resumed, tokens[known:], start=known)

    view = bench.views[resumed].only
    assert pushes[known:] == view.pushes[: len(pushes) - known]
    assert (tokens[known:], STOP, "lo b") == (view.token_ids, view.reason, view.matched_stop)
    assert Usage(prompt_tokens=1, completion_tokens=len(tokens), cached_tokens=0) == bench.views[resumed].usage


def test_each_choice_goes_on_with_its_own_tokens_so_far() -> None:
    bench = CoreBench.of()
    request = bench.open(n=2, max_tokens=3, output_ids=(pack_i32(encode("h")), b""))

    assert [3] == [admit.max_tokens for admit in bench.admits]
    bench.stream(request, encode("ab"), choice=0, start=1)
    bench.stream(request, encode("abb"), choice=1)
    bench.finish((request, 0, LENGTH, 3), (request, 1, LENGTH, 3))

    assert ["ab", "abb"] == [choice.text for choice in bench.views[request].choices]
    assert Usage(prompt_tokens=1, completion_tokens=6, cached_tokens=0) == bench.views[request].usage


def test_the_prompt_is_echoed_once_for_a_request_with_tokens_so_far() -> None:
    bench = CoreBench.of()
    request = bench.open(echo=True, output_ids=(pack_i32(encode("h")),))

    bench.stream(request, encode("a"), start=1)

    assert "a" == bench.views[request].only.text


def test_a_token_that_came_before_is_our_own_fault() -> None:
    bench = CoreBench.of()
    request = bench.open(output_ids=(pack_i32(encode("h")),))

    with pytest.raises(InvariantViolated):
        bench.stream(request, encode("h"))
