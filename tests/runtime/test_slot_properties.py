import random

from hypothesis import given, settings
from hypothesis import strategies as st

from layered_llm.domain.columns import unpack_i32
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.runtime.scripted.scripted_device import ScriptedDevice, ScriptedPace
from layered_llm.runtime.scripted.scripts import HashScript
from support.runtime_driver import execute, greedy, make_step, open_slot

VOCABULARY = 50
SCRIPT = HashScript(first_id=10, id_count=26)


def new_device(page_size_tokens: int) -> ScriptedDevice:
    limits = RuntimeLimits(pages=200, page_size_tokens=page_size_tokens, slots=4, context_tokens=60, vocabulary_size=VOCABULARY)
    pace = ScriptedPace(step_us=0, token_us=0)
    return ScriptedDevice(limits=limits, script=SCRIPT, pace=pace, wait=lambda _: None, now_us=lambda: 0)


def run_alone(prompt: list[int], output_tokens: int) -> list[int]:
    device = new_device(60)
    done = execute(device, make_step(opened=[open_slot(0, prompt)], pages=[(0, 0, [0])], rows=[(0, 0, len(prompt), True)]))
    output = list(unpack_i32(done.token_ids))
    for known in range(len(prompt), len(prompt) + output_tokens - 1):
        done = execute(device, make_step(rows=[(0, known, 1, True)]))
        output += unpack_i32(done.token_ids)
    return output


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20), min_size=1, max_size=4),
    page_size_tokens=st.integers(1, 9),
    seed=st.integers(0, 1 << 16),
)
def test_any_interleaving_of_chunks_pages_and_preemptions_gives_the_same_output(
    prompts: list[list[int]], page_size_tokens: int, seed: int
) -> None:
    rng = random.Random(seed)
    device = new_device(page_size_tokens)
    output_tokens = 12
    outputs: list[list[int]] = [[] for _ in prompts]
    free = rng.sample(range(200), 200)
    tables: list[list[int]] = [[] for _ in prompts]
    computed = [-1] * len(prompts)
    while any(len(output) < output_tokens for output in outputs):
        retired, opened, pages, rows = [], [], [], []
        for slot, prompt in enumerate(prompts):
            if len(outputs[slot]) >= output_tokens or rng.random() < 0.2:
                continue
            if computed[slot] >= 0 and rng.random() < 0.1:
                retired.append(slot)
                free += tables[slot]
                tables[slot], computed[slot] = [], -1
            if computed[slot] < 0:
                opened.append(open_slot(slot, prompt, outputs[slot], params=greedy()))
                computed[slot] = 0
            known = len(prompt) + len(outputs[slot])
            count = rng.randint(1, known - computed[slot])
            end = computed[slot] + count
            new = [free.pop() for _ in range(-(-end // page_size_tokens) - len(tables[slot]))]
            pages.append((slot, len(tables[slot]), new))
            tables[slot] += new
            rows.append((slot, computed[slot], count, end == known))
            computed[slot] = end
        rng.shuffle(rows)
        done = execute(device, make_step(retired=retired, opened=opened, pages=pages, rows=rows))
        sampling_slots = [slot for slot, _, _, samples in rows if samples]
        for slot, token in zip(sampling_slots, unpack_i32(done.token_ids), strict=True):
            outputs[slot].append(token)
    assert [run_alone(prompt, output_tokens) for prompt in prompts] == outputs
