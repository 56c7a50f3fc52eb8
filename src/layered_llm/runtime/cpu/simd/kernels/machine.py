"""Which processor this is, and whether the kernels can run on it.

Must not know: kernels, how they are compiled.
"""

import platform
from collections.abc import Mapping
from typing import Final

import attrs
from llvmlite import binding

LINE_BYTES: Final = 64
"""Of a cache line."""
NARROW_LANES: Final = 8
"""Of the vectors that every such processor has."""
WIDE_LANES: Final = 16
_NEEDED: Final = ("avx2", "fma", "f16c")
_WIDE: Final = ("avx512f", "avx512vl", "avx512bw", "avx512dq")
"""With these, vectors of 16 numbers, and 32 registers."""


@attrs.frozen(kw_only=True)
class Machine:
    """What code is generated for."""

    processor: str
    """LLVM's name of it."""
    features: str
    """LLVM's list of what it can and cannot do."""
    lanes: int
    """Fp32 numbers of a vector: 8 or 16."""
    registers: int
    """Vector registers."""
    has_byte_products: bool
    """Whether an instruction adds 4 products of bytes to each of a vector's 32-bit sums (VNNI)."""


def find_machine() -> Machine | str:
    """This machine, or in words what it lacks."""
    system, architecture = platform.system(), platform.machine()
    if (system, architecture) != ("Linux", "x86_64"):
        return f"they are for Linux on x86-64, not {system} on {architecture}"
    return machine_of(binding.get_host_cpu_name(), binding.get_host_cpu_features())


def machine_of(processor: str, features: Mapping[str, bool]) -> Machine | str:
    """The machine with LLVM's `features`, or in words which of them it lacks."""
    lacking = [name for name in _NEEDED if not features.get(name)]
    if lacking:
        return f"the processor lacks {', '.join(lacking)}"
    listed = ",".join(f"{'+' if is_there else '-'}{name}" for name, is_there in sorted(features.items()))
    is_wide = all(features.get(name) for name in _WIDE)
    return Machine(
        processor=processor,
        features=listed,
        lanes=WIDE_LANES if is_wide else NARROW_LANES,
        registers=32 if is_wide else 16,
        has_byte_products=bool(features.get("avx512vnni" if is_wide else "avxvnni")),
    )
