from layered_llm.transport.sparse_log import SparseLog


def test_after_a_line_none_is_due_for_ten_seconds() -> None:
    lines = SparseLog()

    assert [0.0, 10.0, 21.0] == [now_s for now_s in (0.0, 0.0, 1.0, 9.9, 10.0, 15.0, 19.9, 21.0) if lines.is_due(now_s)]
