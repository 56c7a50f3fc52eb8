from typing import Any

import pytest

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.finish import FinishReason
from layered_llm.domain.messages.api_text import TextEmitted
from layered_llm.text.tokenizer import Tokenizer
from support.logprobs import pairs_of
from support.text_core import CoreBench, files
from support.text_tokenizers import EOS, byte_level, llama_style

TOKENIZER = byte_level()
HELLO, A, EOS_ID = (TOKENIZER.id_of(token) or 0 for token in ("hello", "a", EOS))


def told(bench: CoreBench) -> list[Any]:
    """(token id, [(id, logprob)], bytes) of each token that the API was told."""
    return [row for message in bench.emitted for row in rows_of(message)]


def rows_of(message: TextEmitted) -> list[Any]:
    tokens, rows = iter(message.logprob_tokens), []
    for token, pairs in zip(unpack_i32(message.token_ids), pairs_of(message.logprobs), strict=False):
        rows.append((token, pairs, [next(tokens) for _ in pairs]))
    return rows


def test_what_is_asked_for_is_passed_on() -> None:
    bench = CoreBench.of()
    bench.admit(logprobs=3)
    bench.admit()
    assert [3, None] == [admit.sampling.logprobs for admit in bench.admits]


def test_logprobs_come_with_the_bytes_of_their_tokens() -> None:
    bench = CoreBench.of()
    with_logprobs, without = bench.open(logprobs=1), bench.open()
    pairs = [(HELLO, -0.5), (EOS_ID, -0.25)]
    bench.tokens((with_logprobs, 0, 0, HELLO), (without, 0, 0, A), logprobs=[pairs, []])
    assert [(HELLO, pairs, [b"hello", EOS.encode()]), (A, [], [])] == told(bench)


def test_a_message_without_any_has_no_columns() -> None:
    bench = CoreBench.of()
    bench.tokens((bench.open(), 0, 0, HELLO))
    assert [(None, ())] == [(message.logprobs, message.logprob_tokens) for message in bench.emitted]


def test_a_token_that_is_part_of_a_character_keeps_its_bytes() -> None:
    bench = CoreBench.of()
    request = bench.open(logprobs=0)
    first, *_ = parts = TOKENIZER.encode("é", add_special_tokens=False)
    assert 2 == len(parts)
    bench.tokens((request, 0, 0, first), logprobs=[[(first, -1.0)]])
    assert [(first, [(first, -1.0)], [b"\xc3"])] == told(bench)


def test_an_id_beyond_the_vocabulary_stands_for_nothing() -> None:
    bench = CoreBench.of()
    bench.tokens((bench.open(logprobs=1), 0, 0, HELLO), logprobs=[[(HELLO, -1.0), (999, -2.0)]])
    assert [b"hello", b""] == told(bench)[0][2]


def test_a_stop_string_cuts_logprobs_where_it_cuts_tokens() -> None:
    bench = CoreBench.of()
    request = bench.open(logprobs=0, stop=("hello",))
    for position, token in enumerate([A, HELLO, A, A]):
        bench.tokens((request, 0, position, token), logprobs=[[(token, -1.0 - position)]])
    bench.finish((request, 0, FinishReason.LENGTH, 4))
    assert [(A, [(A, -1.0)], [b"a"]), (HELLO, [(HELLO, -2.0)], [b"hello"])] == told(bench)


def test_a_request_that_was_left_is_told_no_logprobs() -> None:
    bench = CoreBench.of()
    left, stays = bench.open(logprobs=0), bench.open(logprobs=0)
    bench.abort(left)
    bench.tokens((left, 0, 0, A), (stays, 0, 0, HELLO), logprobs=[[(A, -1.0)], [(HELLO, -2.0)]])
    assert [(HELLO, [(HELLO, -2.0)], [b"hello"])] == told(bench)


def bytes_of(tokenizer: Tokenizer, *tokens: str) -> list[bytes]:
    return [tokenizer.token_bytes(tokenizer.id_of(token) or 0) for token in tokens]


def test_pieces_stand_for_their_text_with_the_space_and_fallbacks_for_a_byte() -> None:
    assert [b" hello", "é".encode(), b"\xe4"] == bytes_of(llama_style(), "▁hello", "é", "<0xE4>")


def test_a_core_of_pieces_tells_them_too() -> None:
    tokenizer = llama_style()
    token = tokenizer.id_of("▁hello") or 0
    bench = CoreBench.of(files(tokenizer))
    bench.tokens((bench.open(logprobs=0), 0, 0, token), logprobs=[[(token, -1.0)]])
    assert [b" hello"] == told(bench)[0][2]


def test_a_token_is_named_once_however_often_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def noted(_: Tokenizer, token: int) -> bytes:
        asked.append(token)
        return b"x"

    monkeypatch.setattr(Tokenizer, "token_bytes", noted)
    bench = CoreBench.of()
    bench.tokens((bench.open(logprobs=3), 0, 0, A), logprobs=[[(A, -1.0), (HELLO, -0.5), (A, -1.0), (EOS_ID, -3.0)]])
    assert sorted([A, HELLO, EOS_ID]) == sorted(asked)
    assert [b"x"] * 4 == told(bench)[0][2]


def test_places_count_what_the_text_shows_and_not_what_a_stop_string_holds_back() -> None:
    bench = CoreBench.of()
    request = bench.open(logprobs=0, stop=("hellox",))
    for position, token in enumerate([A, HELLO, EOS_ID, A]):
        bench.tokens((request, 0, position, token), logprobs=[[(token, -1.0)]])
    assert [0, 1, 6, 6] == [place for message in bench.emitted for place in unpack_i32(message.text_offsets)]


def test_a_row_without_logprobs_has_no_place() -> None:
    bench = CoreBench.of()
    bench.tokens((bench.open(), 0, 0, HELLO))
    assert [b""] == [message.text_offsets for message in bench.emitted]
