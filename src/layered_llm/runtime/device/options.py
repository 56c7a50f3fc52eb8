"""What a device is opened with.

Must not know: where the values come from, their defaults, torch.
"""

from pathlib import Path
from typing import Literal

import attrs


@attrs.frozen(kw_only=True)
class ScriptOptions:
    """What the scripted device does; the CPU device ignores it."""

    name: Literal["echo", "hash"]
    first_id: int
    """`hash` samples the ids `first_id … first_id + id_count - 1`, such as those of the letters a to z."""
    id_count: int
    step_us: int
    token_us: int


@attrs.frozen(kw_only=True)
class RuntimeOptions:
    """Everything that decides what a device is."""

    device: Literal["cpu", "scripted"]
    model: Path
    """A Hugging Face directory or a GGUF file."""
    dtype: str
    """auto, float32, bfloat16, float16 or int8: the precision of the weights. Activations and sums are fp32 on the CPU."""
    num_pages: int | None
    """None: what `memory_ratio` of the free memory holds, but no more than all slots can fill."""
    memory_ratio: float
    """The KV pool's part of the memory that the weights leave free."""
    page_size_tokens: int
    max_slots: int
    context_override: int | None
    """A context shorter than the model's."""
    threads: int | None
    """None: the cores that this process may use."""
    kernels: Literal["auto", "simd", "torch"]
    """auto: the generated kernels where they can be used, else torch."""
    kernel_cache: Path | None
    """Directory where compiled kernels are kept; None keeps nothing."""
    kv_dtype: Literal["float32", "float16"]
    deterministic: bool
    """A request's logits never depend on what else is computed; refused where that cannot be kept."""
    script: ScriptOptions
