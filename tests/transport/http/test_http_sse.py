import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.transport.http.exchange import sse


def worded(text: str) -> dict[str, object]:
    return {"id": "0", "choices": [{"index": 1, "text": text, "finish_reason": None}], "usage": None}


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_a_text_event_is_the_event_that_its_text_would_be_encoded_to(text: str) -> None:
    assert sse.event(worded(text)) == sse.TextEvent.of(worded).with_text(text)


@pytest.mark.parametrize("text", ['"', "\\", "\n\n", "\x00", "\u2028", "é🙂", '","text":"'])
def test_no_text_escapes_from_its_event(text: str) -> None:
    data = sse.TextEvent.of(worded).with_text(text)

    assert 1 == data.count(b"\n\n")
    assert worded(text) == json.loads(data.removeprefix(b"data: "))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(deadline=None, derandomize=True)
@given(JSON)
def test_pieces_add_up_to_what_is_encoded_at_once(value: object) -> None:
    assert sse.to_json(value) == sse.to_json_in_pieces(value)


@pytest.mark.parametrize("count", [63, 64, 65, 128, 129])
def test_a_long_list_is_cut_between_its_items(count: int) -> None:
    value = {"choices": [{"tokens": [[place, {"a,b": "]"}] for place in range(count)]}]}

    assert sse.to_json(value) == sse.to_json_in_pieces(value)


SEPARATORS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and len(f"a{chr(code)}b".splitlines()) > 1]


def test_an_event_is_one_line_for_clients_that_split_by_splitlines() -> None:
    text = "é".join(SEPARATORS)
    for written in (sse.event({"text": text}), sse.TextEvent.of(lambda text: {"text": text}).with_text(text)):
        first, *rest = written.decode().splitlines()
        assert [""] == rest
        assert {"text": text} == json.loads(first.removeprefix("data: "))


def test_json_in_pieces_is_one_line_too() -> None:
    value = {SEPARATORS[-1]: ["".join(SEPARATORS)] * 100}
    for written in (sse.to_json_in_pieces(value), b"".join(sse.json_pieces(value))):
        assert 1 == len(written.decode().splitlines())
        assert value == json.loads(written)
