"""Whether the generated kernels can execute a model on this machine.

Must not know: how, who asks.
"""

from typing import Final

from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.simd.machine import Machine, find_machine
from layered_llm.runtime.simd.vectors import LANES

_LEAST_HEAD_DIM: Final = 2 * LANES


def find_support(config: ModelConfig) -> Machine | str:
    """The machine for which code is generated, or in words why it is not."""
    sizes = {
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
    }
    for name, size in sizes.items():
        if size % LANES:
            return f"the model's {name} of {size} is no multiple of {LANES}"
    if config.head_dim < _LEAST_HEAD_DIM:
        return f"the model's head_dim of {config.head_dim} is below {_LEAST_HEAD_DIM}"
    return find_machine()
