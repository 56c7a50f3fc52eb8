import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.transport.http import sse


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
