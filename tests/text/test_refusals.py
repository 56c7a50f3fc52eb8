import pytest

from layered_llm.domain.ids import RequestId
from layered_llm.domain.messages.text_scheduler import Refused
from layered_llm.domain.verdicts import RefuseReason
from layered_llm.text.refusals import refusal_sentence


@pytest.mark.parametrize(("streams", "words"), [(1, "has 1 stream open"), (2, "has 2 streams open")])
def test_a_refusal_counts_streams_in_words_that_agree(streams: int, words: str) -> None:
    refused = Refused(request=RequestId(1), reason=RefuseReason.TOO_MANY_STREAMS, limit=1, actual=streams)

    assert words in refusal_sentence(refused)
