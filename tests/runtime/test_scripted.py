import subprocess
import sys

import attrs
import pytest

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import GO_ON
from layered_llm.runtime.scripted.scripted_device import ScriptedDevice, ScriptedPace
from layered_llm.runtime.scripted.scripts import EchoScript, FailingScript, HashScript, Script
from support.runtime_driver import Driver, execute, generate, greedy, make_step, open_slot, sampling

LIMITS = RuntimeLimits(pages=64, page_size_tokens=4, slots=8, context_tokens=64, vocabulary_size=300)
ECHO = EchoScript()
HASH = HashScript(first_id=97, id_count=26)


class VirtualClock:
    def __init__(self) -> None:
        self.now_us = 0

    def wait(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


def scripted(
    script: Script = HASH, *, clock: VirtualClock | None = None, step_us: int = 0, token_us: int = 0
) -> ScriptedDevice:
    clock = clock or VirtualClock()
    return ScriptedDevice(
        limits=LIMITS,
        script=script,
        pace=ScriptedPace(step_us=step_us, token_us=token_us),
        wait=clock.wait,
        now_us=lambda: clock.now_us,
    )


def test_echo_repeats_the_prompt() -> None:
    assert [[5, 250, 7, 5, 250]] == generate(scripted(ECHO), [[5, 250, 7]], output_tokens=5)


def test_echo_skips_masked_ids_until_min_tokens_are_sampled() -> None:
    params = greedy(min_tokens=2, end_ids=(250,))
    assert [[5, 7, 7, 5, 250]] == generate(scripted(ECHO), [[5, 250, 7]], output_tokens=5, params=[params])


def test_echo_finds_an_unmasked_id_even_if_the_whole_prompt_is_masked() -> None:
    params = greedy(min_tokens=1, end_ids=(0, 1, 9))
    assert [[2, 9]] == generate(scripted(ECHO), [[9]], output_tokens=2, params=[params])


def test_made_up_logprobs_tell_the_token_and_its_place() -> None:
    driver = Driver(scripted(ECHO), 100)
    driver.add(open_slot(0, [5, 299], params=sampling(logprobs=2)), output_tokens=2)
    driver.add(open_slot(1, [5]), output_tokens=2)
    driver.run()
    assert [[(5, -0.125), (5, -0.125), (6, -1.125)], [(299, -0.25), (299, -0.25), (0, -1.25)]] == driver.logprobs[0]
    assert [[], []] == driver.logprobs[1]


@pytest.mark.parametrize("chunk_tokens", [1, 2, 100])
def test_made_up_logprobs_of_a_prompt_come_with_the_rows_that_compute_it(chunk_tokens: int) -> None:
    driver = Driver(scripted(ECHO), chunk_tokens)
    driver.add(open_slot(0, [5, 299, 7], params=sampling(prompt_logprobs=1)), output_tokens=3)
    driver.run()
    expected = [[(5, 0.0)], [(299, -0.25), (299, -0.25)], [(7, -0.375), (7, -0.375)]]
    assert expected == driver.prompt_logprobs[0]


def test_hash_depends_on_every_token_of_the_history() -> None:
    base = generate(scripted(), [[1, 2, 3, 4]], output_tokens=8)
    others = generate(scripted(), [[1, 2, 3], [1, 2, 3, 3], [2, 1, 3, 4], [0, 1, 2, 3, 4], [1, 2, 3, 4, 4]], output_tokens=8)
    assert all(base[0] != other for other in others)


def test_hash_stays_in_its_range_and_uses_all_of_it() -> None:
    (output,) = generate(scripted(), [[1]], output_tokens=60)
    assert set(output) <= set(range(97, 123))
    assert len(set(output)) > 15


def test_hash_goes_on_after_a_preemption_as_if_there_had_been_none() -> None:
    (whole,) = generate(scripted(), [[1, 2, 3]], output_tokens=10)
    driver = Driver(scripted(), 3)
    driver.add(open_slot(4, [1, 2, 3], whole[:4]), output_tokens=6)
    assert whole[4:] == driver.run()[4]


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
def test_hash_depends_on_neither_chunks_nor_batch_mates(chunk_tokens: int) -> None:
    prompts = [[1, 2, 3, 4, 5], [9], [8] * 11]
    alone = [generate(scripted(), [prompt], output_tokens=9)[0] for prompt in prompts]
    assert alone == generate(scripted(), prompts, output_tokens=9, chunk_tokens=chunk_tokens)


def test_hash_mixes_the_choice_in() -> None:
    driver = Driver(scripted(), 100)
    for choice in range(3):
        driver.add(open_slot(choice, [1, 2, 3], choice=choice), output_tokens=8)
    assert 3 == len({tuple(tokens) for tokens in driver.run().values()})


def test_hash_mixes_the_seed_in_unless_greedy() -> None:
    params = [sampling(seed=1), sampling(seed=2), sampling(seed=-2), greedy(), sampling(temperature=0.0, seed=9)]
    outputs = generate(scripted(), [[1, 2, 3]] * 5, output_tokens=8, params=params)
    assert 4 == len({tuple(output) for output in outputs})
    assert outputs[3] == outputs[4]


def test_hash_avoids_masked_ids_until_min_tokens_are_sampled() -> None:
    end_ids = tuple(range(97, 122))
    (output,) = generate(scripted(), [[1]], output_tokens=20, params=[greedy(min_tokens=10, end_ids=end_ids)])
    assert [122] * 10 == output[:10]
    assert [122] * 10 != output[10:]


def test_a_page_given_to_two_choices_corrupts_the_output() -> None:
    device = scripted(ECHO)
    both = make_step(
        opened=[open_slot(0, [1, 2]), open_slot(1, [3, 4])],
        pages=[(0, 0, [5]), (1, 0, [5])],
        rows=[(0, 0, 2, True), (1, 0, 2, True)],
    )
    assert [3, 3] == list(unpack_i32(execute(device, both).token_ids))


def test_a_shared_prefix_page_is_read_through_both_page_tables() -> None:
    device = scripted(ECHO)
    execute(device, make_step(opened=[open_slot(0, [1, 2, 3, 4])], pages=[(0, 0, [9])], rows=[(0, 0, 4, False)]))
    hit = make_step(2, opened=[open_slot(1, [1, 2, 3, 4, 6])], pages=[(1, 0, [9, 3])], rows=[(1, 4, 1, True)])
    assert [1] == list(unpack_i32(execute(device, hit).token_ids))


def test_reading_a_cell_that_nobody_wrote_is_our_fault() -> None:
    step = make_step(opened=[open_slot(0, [1, 2, 3, 4, 5])], pages=[(0, 0, [9, 3])], rows=[(0, 4, 1, True)])
    with pytest.raises(InvariantViolated, match="never computed"):
        execute(scripted(), step)


def test_a_step_takes_its_fixed_time_and_its_tokens_time() -> None:
    device = scripted(step_us=2000, token_us=10)
    rows = [(0, 0, 3, True)]
    done = execute(device, make_step(opened=[open_slot(0, [1, 2, 3])], pages=[(0, 0, [0])], rows=rows))
    assert 2030 == done.device_us


def test_a_step_without_rows_takes_no_time_and_is_answered() -> None:
    device = scripted(step_us=2000)
    done = execute(device, make_step(7, opened=[open_slot(0, [1])]))
    assert (7, b"", 0, 1) == (done.step, done.token_ids, done.device_us, done.open_slots)


def test_no_slot_stays_open_after_a_run() -> None:
    driver = Driver(scripted(), 2)
    driver.add(open_slot(0, [1, 2, 3]), output_tokens=3)
    driver.add(open_slot(5, [4]), output_tokens=7)
    driver.run()
    assert driver.last is not None
    assert 0 == driver.last.open_slots


def test_the_scripted_device_starts_without_torch() -> None:
    code = "import sys; import layered_llm.runtime.opening; sys.exit('torch' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode


def test_scripts_choose_and_tell_no_id_that_no_token_has() -> None:
    missing = pack_i32([5, 7, 98, 100])
    params = sampling(temperature=0.0, logprobs=3, missing_ranges=missing)
    driver = Driver(scripted(EchoScript()), 100)
    driver.add(open_slot(0, [4, 5, 9], params=params), output_tokens=3)
    assert [4, 9, 9] == driver.run()[0]
    assert [4, 7, 8] == [token for token, _ in driver.logprobs[0][0][1:]]
    hashed = generate(scripted(HashScript(first_id=97, id_count=4)), [[1, 2]], output_tokens=30, params=[params])[0]
    assert {97, 100} == set(hashed)


def test_two_steps_may_be_submitted_and_are_executed_in_their_order() -> None:
    device = scripted(EchoScript())
    device.submit(make_step(1, opened=[open_slot(0, [1, 2])], pages=[(0, 0, [3])], rows=[(0, 0, 2, True)]))
    device.submit(make_step(2, rows=[(0, 2, 1, True)]))
    results = [device.collect(), device.collect()]
    assert [(1, [1]), (2, [2])] == [(each.step, list(unpack_i32(each.token_ids))) for each in results]


def test_a_third_step_is_our_own_fault() -> None:
    device = scripted()
    device.submit(make_step(1))
    device.submit(make_step(2))
    with pytest.raises(InvariantViolated, match="step 3 is submitted while 2 wait"):
        device.submit(make_step(3))


def test_to_collect_what_was_not_submitted_is_our_own_fault() -> None:
    with pytest.raises(InvariantViolated, match="none was submitted"):
        scripted().collect()


def test_a_row_yields_nothing_after_an_end_id_and_does_not_fail_there() -> None:
    fails_third = FailingScript(script=ECHO, token=5, position=2)
    device = ScriptedDevice(
        limits=attrs.evolve(LIMITS, decode_tokens=3),
        script=fails_third,
        pace=ScriptedPace(step_us=0, token_us=0),
        wait=lambda _seconds: None,
        now_us=lambda: 0,
        yields=lambda _step, _slot, most: most,
    )
    opened = [open_slot(0, [5, 250], params=greedy(end_ids=(250,)))]
    execute(device, make_step(opened=opened, pages=[(0, 0, [1, 2])], rows=[(0, 0, 2, True)]))
    result = execute(device, make_step(2, rows=[(0, GO_ON, 3, True)]))

    assert ([250], b"") == (unpack_i32(result.token_ids).tolist(), result.failed_rows)
