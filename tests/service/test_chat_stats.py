from layered_llm.service.chat.host import AnswerTimes


def test_the_rate_is_that_of_the_tokens_behind_the_first_piece() -> None:
    times = AnswerTimes(10.0)
    times.add(1, 10.25)
    times.add(1, 10.5)
    times.add(3, 12.25)

    assert "5 tokens · 2.0 tokens/s · TTFT 250 ms" == times.stats().line()


def test_the_true_count_replaces_the_counted_pieces() -> None:
    times = AnswerTimes(0.0)
    times.add(1, 1.0)
    times.add(1, 2.0)

    assert "9 tokens · 8.0 tokens/s · TTFT 1000 ms" == times.stats(9).line()


def test_an_answer_of_one_piece_has_no_rate() -> None:
    times = AnswerTimes(0.0)
    times.add(1, 1.0)

    assert "1 token · TTFT 1000 ms" == times.stats().line()


def test_an_answer_without_a_piece_has_no_times() -> None:
    assert "0 tokens" == AnswerTimes(0.0).stats().line()
