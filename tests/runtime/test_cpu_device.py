import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from layered_llm.domain.columns import pack_i32, unpack_i32
from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.cpu.cpu_device import CpuDevice
from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.device.device import DeviceError
from support.logits import Recorder, record, replace_model
from support.runtime_checkpoints import LLAMA3_ROPE, make_checkpoint, reference_greedy, reference_logits
from support.runtime_driver import Driver, execute, generate, greedy, make_step, open_slot, sampling
from support.runtime_options import make_options

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-head-80": {"head_dim": 80},
    "llama-no-groups": {"num_key_value_heads": 4},
    "llama-one-kv-head": {"num_key_value_heads": 1},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "llama-bf16": {"dtype": torch.bfloat16},
    "llama-fp16": {"dtype": torch.float16},
    "llama-sharded": {"shard_size": "40KB"},
    "llama3-rope": {"rope_parameters": LLAMA3_ROPE},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3-tied": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}


def open_cpu(directory: Path, **changes: Any) -> CpuDevice:
    return open_cpu_device(make_options(directory, **changes), now_us=lambda: 0)


def prompts_of(*lengths: int) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(3, 128) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    made: dict[str, tuple[Path, Any]] = {}

    def get(variant: str) -> tuple[Path, Any]:
        if variant not in made:
            directory = tmp_path_factory.mktemp(variant)
            made[variant] = (directory, make_checkpoint(directory, **VARIANTS[variant]))
        return made[variant]

    return get


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_tokens_equal_those_of_transformers(variant: str, checkpoint: Any) -> None:
    directory, model = checkpoint(variant)
    device = open_cpu(directory)
    recorder = record(device)
    (prompt,) = prompts_of(11)
    (output,) = generate(device, [prompt], output_tokens=12)
    expected = reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :]
    assert 1e-4 > (torch.cat(recorder.logits_seen) - expected).abs().max().item()
    assert expected.argmax(dim=-1).tolist() == output


@pytest.mark.parametrize("page_size_tokens", [1, 4, 16])
@pytest.mark.parametrize("chunk_tokens", [1, 3, 1000])
def test_output_depends_on_neither_chunks_nor_pages_nor_batch_mates(
    chunk_tokens: int, page_size_tokens: int, checkpoint: Any
) -> None:
    directory, model = checkpoint("llama")
    prompts = prompts_of(1, 5, 17, 40, 3)
    device = open_cpu(directory, page_size_tokens=page_size_tokens, num_pages=512 // page_size_tokens)
    outputs = generate(device, prompts, output_tokens=10, chunk_tokens=chunk_tokens)
    assert [reference_greedy(model, prompt, 10) for prompt in prompts] == outputs


def test_logits_of_mixed_prefill_and_decode_rows_equal_those_of_transformers(checkpoint: Any) -> None:
    directory, model = checkpoint("llama-head-80")
    device = open_cpu(directory, num_pages=128)
    recorder = record(device)
    driver = Driver(device, 7, stride=5)
    prompts = prompts_of(3, 30, 64)
    for slot, prompt in enumerate(prompts):
        driver.add(open_slot(slot, prompt), output_tokens=15 if slot else 2)
    outputs = driver.run()
    expected = [reference_logits(model, prompt + outputs[slot][:-1])[len(prompt) - 1 :] for slot, prompt in enumerate(prompts)]
    seen = torch.cat(recorder.logits_seen)
    distances = torch.cdist(seen, torch.cat(expected), p=torch.inf, compute_mode="donot_use_mm_for_euclid_dist")
    assert 1e-4 > distances.min(dim=0).values.max().item()


def test_chunks_longer_than_a_block_of_queries(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, max_position_embeddings=1024)
    prompts = prompts_of(700, 300, 1)
    device = open_cpu(tmp_path, num_pages=300)
    outputs = generate(device, prompts, output_tokens=3, chunk_tokens=600)
    assert [reference_greedy(model, prompt, 3) for prompt in prompts] == outputs


def test_a_cached_prefix_is_read_from_another_slots_pages(checkpoint: Any) -> None:
    directory, model = checkpoint("qwen3")
    prompt, tail = prompts_of(8, 2)
    device = open_cpu(directory)
    execute(device, make_step(opened=[open_slot(0, prompt)], pages=[(0, 0, [9, 4])], rows=[(0, 0, 8, False)]))
    opened = [open_slot(1, prompt + tail)]
    done = execute(device, make_step(2, retired=[0], opened=opened, pages=[(1, 0, [9, 4, 7])], rows=[(1, 8, 2, True)]))
    assert reference_greedy(model, prompt + tail, 1) == list(unpack_i32(done.token_ids))


def test_seeded_output_survives_preemption_and_batch_mates(checkpoint: Any) -> None:
    directory, _ = checkpoint("llama")
    prompts = prompts_of(9, 4, 13)
    params = [sampling(seed=5, temperature=1.3, top_p=0.9), sampling(seed=5), sampling(seed=6, top_k=20)]
    alone = generate(open_cpu(directory), prompts[:1], output_tokens=12, params=params[:1])[0]
    together = generate(open_cpu(directory), prompts, output_tokens=12, params=params)[0]
    driver = Driver(open_cpu(directory), 5)
    driver.add(open_slot(3, prompts[0], alone[:5], params=params[0]), output_tokens=7)
    assert [alone, alone[5:]] == [together, driver.run()[3]]


@pytest.mark.parametrize("kernels", ["simd", "torch"])
def test_a_greedy_choice_has_the_same_output_beside_one_that_is_drawn(kernels: str, checkpoint: Any) -> None:
    directory, _ = checkpoint("llama")
    prompts = prompts_of(9, 4)
    alone = generate(open_cpu(directory, kernels=kernels), prompts[:1], output_tokens=8)[0]
    params = [greedy(), sampling(seed=5)]
    assert alone == generate(open_cpu(directory, kernels=kernels), prompts, output_tokens=8, params=params)[0]


def test_a_slot_is_sampled_as_its_last_choice_asks(checkpoint: Any) -> None:
    directory, _ = checkpoint("llama")
    (prompt,) = prompts_of(9)
    device = open_cpu(directory)
    (free,) = generate(device, [prompt], output_tokens=4)
    (biased,) = generate(device, [prompt], output_tokens=4, params=[sampling(temperature=0.0, biases={7: 1e4})])
    assert ([7] * 4, free) == (biased, generate(device, [prompt], output_tokens=4)[0])


def test_choices_of_one_seed_differ(checkpoint: Any) -> None:
    directory, _ = checkpoint("llama")
    driver = Driver(open_cpu(directory), 100)
    for choice in range(4):
        driver.add(open_slot(choice, [5, 6, 7], params=sampling(seed=1), choice=choice), output_tokens=8)
    assert 4 == len({tuple(tokens) for tokens in driver.run().values()})


def test_min_tokens_hold_back_the_end(checkpoint: Any) -> None:
    directory, model = checkpoint("llama")
    (prompt,) = prompts_of(6)
    free = reference_greedy(model, prompt, 4)
    params = sampling(temperature=0.0, min_tokens=2, end_ids=(free[0],))
    (output,) = generate(open_cpu(directory), [prompt], output_tokens=2, params=[params])
    assert free[0] not in output


def test_a_step_without_rows_only_changes_state(checkpoint: Any) -> None:
    device = open_cpu(checkpoint("llama")[0])
    done = execute(device, make_step(3, opened=[open_slot(0, [1])]))
    assert (3, b"", 1) == (done.step, done.token_ids, done.open_slots)


def test_a_failure_inside_torch_is_a_device_error_of_one_line(checkpoint: Any) -> None:
    class Failing(Recorder):
        def sampled_logits(self, *_: Any) -> Any:
            raise torch.OutOfMemoryError("no memory left\nframe 1\nframe 2")

    device = open_cpu(checkpoint("llama")[0])
    replace_model(device, Failing(device._model))
    step = make_step(9, opened=[open_slot(0, [1])], pages=[(0, 0, [0])], rows=[(0, 0, 1, True)])
    with pytest.raises(DeviceError, match=r"^step 9 failed: no memory left$"):
        execute(device, step)


def test_a_config_that_is_not_the_checkpoints_is_a_device_error_of_one_line(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 1 << 30}))
    with pytest.raises(
        DeviceError,
        match=r"^tensor \S+gate_proj.weight has shape \[96, 64\], but the config asks for \[1073741824, 64\]$",
    ):
        open_cpu(tmp_path)


def test_limits_say_what_was_opened(checkpoint: Any) -> None:
    limits = open_cpu(checkpoint("llama")[0], num_pages=10, page_size_tokens=8, max_slots=3).limits
    assert (10, 8, 3, 80, 128) == (
        limits.pages,
        limits.page_size_tokens,
        limits.slots,
        limits.context_tokens,
        limits.vocabulary_size,
    )


def test_the_default_pool_holds_a_context_of_each_slot_where_memory_allows_it(checkpoint: Any) -> None:
    limits = open_cpu(checkpoint("llama")[0], num_pages=None, context_override=100, page_size_tokens=16).limits
    assert (8 * 7, 100) == (limits.pages, limits.context_tokens)


def test_a_context_beyond_the_models_is_refused(checkpoint: Any) -> None:
    with pytest.raises(DeviceError, match="a context of 257 tokens was asked for, but the model's own is 256"):
        open_cpu(checkpoint("llama")[0], context_override=257)


PENALTIES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.6},
    "all": {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5},
}


def reference_penalized(model: Any, prompt: list[int], output_tokens: int, penalties: dict[str, Any]) -> list[int]:
    """Greedy with transformers' processor and OpenAI's formula."""
    repetition = RepetitionPenaltyLogitsProcessor(penalties.get("repetition_penalty", 1.0))
    output: list[int] = []
    for _ in range(output_tokens):
        scores = repetition(torch.tensor([prompt + output]), reference_logits(model, prompt + output)[-1:].clone())[0]
        for token, count in Counter(output).items():
            scores[token] -= penalties.get("frequency_penalty", 0.0) * count + penalties.get("presence_penalty", 0.0)
        output.append(int(scores.argmax()))
    return output


@pytest.mark.parametrize("penalties", PENALTIES)
def test_penalized_greedy_tokens_equal_the_references(penalties: str, checkpoint: Any) -> None:
    directory, model = checkpoint("llama")
    prompts = prompts_of(20, 7)
    params = [sampling(temperature=0.0, **PENALTIES[penalties]), greedy()]
    outputs = generate(open_cpu(directory), prompts, output_tokens=40, params=params, chunk_tokens=9)
    assert reference_penalized(model, prompts[0], 40, PENALTIES[penalties]) == outputs[0]
    assert reference_greedy(model, prompts[0], 40) != outputs[0]
    assert reference_greedy(model, prompts[1], 40) == outputs[1]


@pytest.mark.parametrize("penalties", PENALTIES)
def test_a_penalized_choice_survives_preemption(penalties: str, checkpoint: Any) -> None:
    directory, _ = checkpoint("llama")
    (prompt,) = prompts_of(9)
    params = sampling(seed=2, temperature=0.8, min_p=0.01, biases={7: 3.0}, **PENALTIES[penalties])
    (whole,) = generate(open_cpu(directory), [prompt], output_tokens=30, params=[params])
    device = open_cpu(directory)
    driver = Driver(device, 100)
    driver.add(open_slot(0, prompt, params=params), output_tokens=11)
    begun = driver.run()[0]
    driver.add(open_slot(0, prompt, begun, params=params), output_tokens=19)
    assert whole == begun + driver.run()[0]


@attrs.frozen
class Padded:
    """A model with ids that no token has, the one that it takes for likeliest first of all among them."""

    directory: Path
    prompt: list[int]
    ids: set[int]
    ranges: bytes
    expected: list[int]
    """The likeliest tokens of those that are left."""


@pytest.fixture(scope="module")
def padded(checkpoint: Any) -> Padded:
    directory, model = checkpoint("llama")
    (prompt,) = prompts_of(6)
    (likeliest,) = reference_greedy(model, prompt, 1)
    ranges = [likeliest, likeliest + 1, 100, 128] if likeliest < 99 else [40, 43, likeliest, 128]
    ids = {*range(*ranges[:2]), *range(*ranges[2:])}
    expected: list[int] = []
    for _ in range(4):
        logits = reference_logits(model, prompt + expected)[-1].clone()
        logits[sorted(ids)] = -torch.inf
        expected.append(int(logits.argmax()))
    return Padded(directory, prompt, ids, pack_i32(ranges), expected)


@pytest.mark.parametrize("kernels", ["simd", "torch"])
def test_an_id_that_no_token_has_is_never_the_likeliest(kernels: str, padded: Padded) -> None:
    biases = dict.fromkeys(padded.ids, 100.0)
    params = [
        greedy(),
        sampling(temperature=0.0, min_tokens=2, end_ids=(min(padded.ids),)),
        sampling(temperature=0.0, biases=biases),
        sampling(temperature=0.0, repetition_penalty=1.0, logprobs=3),
    ]
    device = open_cpu(padded.directory, kernels=kernels)
    outputs = [
        generate(device, [padded.prompt], output_tokens=4, params=[attrs.evolve(each, missing_ranges=padded.ranges)])[0]
        for each in params
    ]
    assert [padded.expected] * len(params) == outputs


@pytest.mark.parametrize("kernels", ["simd", "torch"])
def test_an_id_that_no_token_has_is_never_drawn_at_any_temperature(kernels: str, padded: Padded) -> None:
    params = [sampling(temperature=100.0, seed=seed, missing_ranges=padded.ranges) for seed in range(8)]
    outputs = generate(open_cpu(padded.directory, kernels=kernels), prompts_of(*[4] * 8), output_tokens=20, params=params)
    sampled = {token for output in outputs for token in output}
    assert (set(), True) == (sampled & padded.ids, len(sampled) > 50)


def test_an_id_that_no_token_has_is_told_neither_of_the_output_nor_of_the_prompt(checkpoint: Any, padded: Padded) -> None:
    prompt = [token for token in padded.prompt if token not in padded.ids]
    driver = Driver(open_cpu(padded.directory), 4)
    params = sampling(temperature=0.0, logprobs=128, prompt_logprobs=128, missing_ranges=padded.ranges)
    driver.add(open_slot(0, prompt, params=params), output_tokens=1)
    driver.run()
    left = set(range(128)) - padded.ids
    (told,) = driver.logprobs[0]
    likeliest = [told[1:], *(pairs[1:] for pairs in driver.prompt_logprobs[0][1:])]
    assert [left] * len(prompt) == [{token for token, _ in pairs} for pairs in likeliest]
    whole = reference_logits(checkpoint("llama")[1], prompt)[-1].log_softmax(dim=-1)
    assert {token: pytest.approx(float(whole[token]), abs=1e-4) for token in left} == dict(told[1:])


def test_only_the_choices_that_miss_ids_go_without_them(checkpoint: Any, padded: Padded) -> None:
    params = [greedy(), attrs.evolve(greedy(), missing_ranges=padded.ranges)]
    outputs = generate(open_cpu(padded.directory), [padded.prompt] * 2, output_tokens=4, params=params)
    assert [reference_greedy(checkpoint("llama")[1], padded.prompt, 4), padded.expected] == outputs


@pytest.mark.parametrize("ranges", [[3], [5, 5], [6, 4], [-1, 4], [100, 129], [1, 9, 8, 12]])
def test_ranges_of_missing_ids_that_are_none_are_our_fault(ranges: list[int], checkpoint: Any) -> None:
    directory, _ = checkpoint("llama")
    params = attrs.evolve(greedy(), missing_ranges=pack_i32(ranges))
    with pytest.raises(InvariantViolated, match=r"missing ids|outside the vocabulary"):
        execute(open_cpu(directory), make_step(opened=[open_slot(0, [1, 2], params=params)]))


def test_bad_words_and_allowed_tokens_survive_preemption(checkpoint: Any) -> None:
    directory, model = checkpoint("llama")
    (prompt,) = prompts_of(9)
    free = reference_greedy(model, prompt, 30)
    words = [[free[0]], [free[3], free[4]], [free[9], free[10], free[11]]]
    allowed = sorted({*range(0, 128, 3), *free})
    params = sampling(temperature=0.0, bad_words=tuple(map(pack_i32, words)), allowed_ids=pack_i32(allowed))
    expected: list[int] = []
    for _ in range(30):
        scores = reference_logits(model, prompt + expected)[-1]
        banned = [word[-1] for word in words if expected[len(expected) - len(word) + 1 :] == word[:-1]]
        expected.append(max((one for one in allowed if one not in banned), key=lambda one: float(scores[one])))

    (whole,) = generate(open_cpu(directory), [prompt], output_tokens=30, params=[params])
    driver = Driver(open_cpu(directory), 100)
    driver.add(open_slot(0, prompt, params=params), output_tokens=11)
    begun = driver.run()[0]
    driver.add(open_slot(0, prompt, begun, params=params), output_tokens=19)

    assert [expected, expected] == [whole, begun + driver.run()[0]]
    assert free != expected


def test_a_prompt_of_the_whole_context_is_scored(checkpoint: Any) -> None:
    directory, model = checkpoint("llama")
    device = open_cpu(directory)
    (prompt,) = prompts_of(device.limits.context_tokens)
    driver = Driver(device, 50)
    driver.add(open_slot(0, prompt, params=sampling(temperature=0.0, prompt_logprobs=0)), output_tokens=1)
    driver.run()
    logprobs = reference_logits(model, prompt).log_softmax(dim=-1)
    expected = [float(logprobs[at, token]) for at, token in enumerate(prompt[1:])]
    assert pytest.approx(expected, abs=1e-3) == [pairs[0][1] for pairs in driver.prompt_logprobs[0][1:]]
