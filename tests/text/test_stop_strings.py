import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.text.stop_strings import StopAutomaton, StopScanner


def scanner(*stops: str, includes_stop: bool = False) -> StopScanner:
    return StopScanner(StopAutomaton.of(stops), includes_stop)


def scan(pieces: Sequence[str], stops: Sequence[str], *, includes_stop: bool = False) -> tuple[list[str], str | None]:
    """The text released by each push, the flush last, and the stop string found."""
    state = scanner(*stops, includes_stop=includes_stop)
    released = []
    for piece in pieces:
        released.append(state.push(piece))
        if state.matched is not None:
            return released, state.matched
    return [*released, state.finish()], None


def reference(text: str, stops: Sequence[str], *, includes_stop: bool) -> tuple[str, str | None]:
    """By definition: the match that ends first, of those the longest."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if includes_stop else text[: end - len(stop)]), stop
    return text, None


def test_a_stop_string_in_the_middle_of_a_piece_cuts_it() -> None:
    assert (["one ", "two"], "END") == scan(["one ", "twoENDthree"], ["END"])


def test_a_stop_string_over_several_pieces_is_never_shown() -> None:
    assert (["one ", "", "", ""], "END") == scan(["one ", "E", "N", "D"], ["END"])


def test_what_turned_out_to_be_no_stop_string_is_released_with_the_next_text() -> None:
    assert (["a", "", "ENx", ""], None) == scan(["a", "EN", "x"], ["END"])


def test_held_text_is_released_at_the_end() -> None:
    assert (["a", "EN"], None) == scan(["aEN"], ["END"])


def test_only_the_longest_possible_suffix_is_held() -> None:
    assert (["aaEN", "EN"], None) == scan(["aaENEN"], ["END"])
    assert (["ab", "ab"], None) == scan(["abab"], ["abc"])


def test_stop_strings_may_share_prefixes() -> None:
    assert (["x"], "<|") == scan(["x<|im_end|>"], ["<|im_end|>", "<|"])
    assert (["", "<ax"], "<b>") == scan(["<", "ax<b>"], ["<ab>", "<b>"])


def test_the_match_that_ends_first_wins_whatever_the_split() -> None:
    for cut in range(5):
        released, matched = scan(["abcd"[:cut], "abcd"[cut:]], ["abcd", "bc"])
        assert ("a", "bc") == ("".join(released), matched)


def test_of_matches_that_end_together_the_longest_wins() -> None:
    assert ([""], "abc") == scan(["abc"], ["c", "abc", "bc"])


def test_the_stop_string_is_shown_on_demand() -> None:
    assert (["one ", "", "END"], "END") == scan(["one ", "EN", "D two"], ["END"], includes_stop=True)


def test_a_match_while_not_armed_is_passed_over() -> None:
    state = scanner("END")
    assert "xEND" == state.push("xEND", is_armed=False)
    assert "y" == state.push("y")
    assert state.matched is None


def test_a_match_that_began_while_not_armed_counts() -> None:
    state = scanner("END")
    assert "x" == state.push("xEN", is_armed=False)
    assert "" == state.push("D")
    assert "END" == state.matched


def test_a_passed_match_is_held_only_where_a_longer_one_may_follow() -> None:
    state = scanner("ab", "abcd")
    assert "" == state.push("ab", is_armed=False)
    assert "abcx" == state.push("cx")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    text=st.text("abc", max_size=24),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 24), max_size=8),
    includes_stop=st.booleans(),
)
def test_every_split_gives_what_the_definition_gives(text: str, stops: list[str], cuts: list[int], includes_stop: bool) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    released, matched = scan(pieces, stops, includes_stop=includes_stop)
    assert reference(text, stops, includes_stop=includes_stop) == ("".join(released), matched)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text("abc", max_size=16), stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=5))
def test_no_more_is_held_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    state = scanner(*stops)
    released = ""
    for place, char in enumerate(text, 1):
        released += state.push(char)
        if state.matched is not None:
            return
        longest = max(held for held in range(6) if held == 0 or any(s[:held] == text[place - held : place] != s for s in stops))
        assert text[: place - longest] == released


@pytest.mark.parametrize("length", [1_000, 64_000])
def test_the_held_text_never_outgrows_the_longest_stop_string(length: int) -> None:
    stop = "a" * 50 + "b"
    released, matched = scan(["a" * length, "b"], [stop])
    assert ("a" * (length - 50), stop) == ("".join(released), matched)
