"""Whether the generated kernels can execute a model on this machine, and how its weights must lie for them.

Must not know: how, who asks.
"""

from collections.abc import Iterable

import attrs

from layered_llm.runtime.checkpoint.panels import FLOAT_PANELS, PanelLayout, byte_panels
from layered_llm.runtime.cpu.simd.kernels.digits import DIGITS_COLUMNS
from layered_llm.runtime.cpu.simd.kernels.machine import NARROW_LANES, Machine, find_machine
from layered_llm.runtime.models.model_config import ModelConfig, gated


def find_support(config: ModelConfig) -> Machine | str:
    """The machine for which code is generated, or in words why it is not."""
    machine = find_machine()
    return machine if isinstance(machine, str) else machine_for(config, machine)


def machine_for(config: ModelConfig, machine: Machine) -> Machine | str:
    """`machine` with vectors and products that the model's sizes fill, or in words why none do."""
    if any(gated(layer.mlp).intermediate_size != config.intermediate_size for layer in config.layers):
        return "the model's layers have intermediate sizes of their own"
    sizes = {
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
    }
    for name, size in sizes.items():
        if size % NARROW_LANES:
            return f"the model's {name} of {size} is no multiple of {NARROW_LANES}"
    if config.head_dim < 2 * NARROW_LANES:
        return f"the model's head_dim of {config.head_dim} is below {2 * NARROW_LANES}"
    heads_size = config.head_dim * (config.heads // config.kv_heads)
    has_whole_blocks = not any(size % DIGITS_COLUMNS for size in (heads_size, config.hidden_size, config.intermediate_size))
    machine = attrs.evolve(machine, has_byte_products=machine.has_byte_products and has_whole_blocks)
    if _fits(machine.lanes, config.head_dim, sizes.values()):
        return machine
    return attrs.evolve(machine, lanes=NARROW_LANES)


def panels_for(machine: Machine) -> PanelLayout:
    """How matrices of blocks lie for the kernels that are generated for `machine`."""
    return byte_panels(machine.lanes) if machine.has_byte_products else FLOAT_PANELS


def _fits(lanes: int, head_dim: int, sizes: Iterable[int]) -> bool:
    """Whether sizes are whole vectors, and half a head is one at least."""
    return head_dim >= 2 * lanes and not any(size % lanes for size in sizes)
