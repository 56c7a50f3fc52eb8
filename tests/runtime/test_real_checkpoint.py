import pytest

from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from support.golden import default_checkpoint, golden
from support.runtime_driver import Driver, generate, open_slot
from support.runtime_options import make_options

OUTPUT_TOKENS = 24
GOLDENS = [golden(name) for name in ("english", "chat-code", "chinese")]
PROMPTS = [each.prompt_ids for each in GOLDENS]
EXPECTED = [list(each.output_ids[:OUTPUT_TOKENS]) for each in GOLDENS]


def open_real(*, page_size_tokens: int) -> CpuDevice:
    options = make_options(default_checkpoint(), page_size_tokens=page_size_tokens, num_pages=1024 // page_size_tokens)
    return open_cpu_device(options, now_us=lambda: 0)


@pytest.mark.parametrize(("page_size_tokens", "chunk_tokens"), [(1, 7), (16, 1000), (48, 16)])
def test_batched_greedy_tokens_are_those_of_transformers(page_size_tokens: int, chunk_tokens: int) -> None:
    device = open_real(page_size_tokens=page_size_tokens)
    assert EXPECTED == generate(device, PROMPTS, output_tokens=OUTPUT_TOKENS, chunk_tokens=chunk_tokens)


def test_a_prompt_alone_and_one_that_joins_later_get_the_same_tokens() -> None:
    driver = Driver(open_real(page_size_tokens=16), 16, stride=3)
    driver.add(open_slot(0, PROMPTS[0]), output_tokens=OUTPUT_TOKENS)
    for _ in range(10):
        driver.step()
    driver.add(open_slot(1, PROMPTS[1]), output_tokens=OUTPUT_TOKENS)
    outputs = driver.run()
    assert EXPECTED[:2] == [outputs[0], outputs[1]]


def test_a_preempted_choice_goes_on_where_it_was() -> None:
    done = EXPECTED[1][:9]
    driver = Driver(open_real(page_size_tokens=16), 512)
    driver.add(open_slot(0, PROMPTS[1], done), output_tokens=OUTPUT_TOKENS - len(done))
    assert {0: EXPECTED[1][len(done) :]} == driver.run()
