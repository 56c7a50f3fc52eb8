import pytest
from hypothesis import given
from hypothesis import strategies as st

from layered_llm.domain.columns import pack_f32, pack_i32
from layered_llm.domain.ids import StepId
from layered_llm.domain.messages.logprobs import LogprobColumns, entries_of
from layered_llm.domain.messages.scheduler_runtime import StepCompleted
from support.logprobs import columns_of, entries


@given(st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(max_value=0, width=32)), max_size=3), max_size=4))
def test_entries_come_out_as_they_went_in(rows: list[list[tuple[int, float]]]) -> None:
    packed = [entries(row) for row in rows]
    columns = LogprobColumns.of(packed)
    assert packed == list(entries_of(columns, len(rows)))
    assert (columns is None) is not any(rows)


@pytest.mark.parametrize(
    ("counts", "ids", "logprobs"), [([1, 1], [5], [-1.0]), ([1], [5, 6], [-1.0, -2.0]), ([1], [5], []), ([2, -1], [5], [-1.0])]
)
def test_columns_that_do_not_fit_together_are_refused(counts: list[int], ids: list[int], logprobs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"log probabilities|unequal"):
        LogprobColumns(counts=pack_i32(counts), token_ids=pack_i32(ids), logprobs=pack_f32(logprobs))


def test_a_message_tells_of_each_of_its_tokens_or_of_none() -> None:
    columns = columns_of([[(5, -1.0)]])
    with pytest.raises(ValueError, match="log probabilities of 1 tokens beside 2 tokens"):
        StepCompleted(step=StepId(1), token_ids=pack_i32([5, 6]), device_us=0, open_slots=1, logprobs=columns)
