from layered_llm.runtime.cpu.cpu_opening import open_cpu_device
from layered_llm.runtime.device.device import Device
from support.golden import LOGPROB_PROMPTS, LOGPROB_TOKENS, default_checkpoint, golden, golden_logprobs
from support.logprobs import Pairs
from support.runtime_driver import Driver, open_slot, sampling
from support.runtime_options import make_options


def run(device: Device, *names: str) -> dict[str, list[Pairs]]:
    """The entries of each prompt's tokens, the prompts run together."""
    driver = Driver(device, 32)
    for slot, name in enumerate(names):
        params = sampling(temperature=0.0, logprobs=5)
        driver.add(open_slot(slot, golden(name).prompt_ids, params=params), output_tokens=LOGPROB_TOKENS)
    driver.run()
    return {name: driver.logprobs[slot] for slot, name in enumerate(names)}


def distance(name: str, output: list[Pairs]) -> float:
    """The largest one to what transformers says of the same tokens."""
    worst = 0.0
    for pairs, expected in zip(output, golden_logprobs()[name], strict=True):
        worst = max([worst, *(abs(dict(pairs)[token] - logprob) for token, logprob in expected)])
    return worst


def test_output_logprobs_are_those_of_transformers_together_and_alone() -> None:
    device = open_cpu_device(make_options(default_checkpoint(), num_pages=64), now_us=lambda: 0)
    together = run(device, *LOGPROB_PROMPTS)
    alone = run(device, LOGPROB_PROMPTS[0])
    assert 1e-4 > max(distance(name, output) for outputs in (together, alone) for name, output in outputs.items())
