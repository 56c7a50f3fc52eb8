"""The counts of `benchmarks.spine` say something only if nothing but the code changes them."""

from benchmarks.spine import measure

from layered_llm.testing.deterministic import run_deterministic


def test_two_runs_enter_the_same_functions_as_often() -> None:
    first, second = (run_deterministic(measure, seed=0) for _ in range(2))
    assert [calls.counts for calls in first] == [calls.counts for calls in second]


def test_a_chat_goes_through_every_layer() -> None:
    chat, _ = run_deterministic(measure, seed=0)
    assert ["domain", "http", "runtime", "scheduling", "service", "text", "transport"] == chat.parts()
