"""The memory of a runtime process: what it takes beyond its imports to open the model, beside the weights and the KV pool.

`start_time.py` runs it in a process of its own, since a peak is never given back.
"""

import json
import sys
from pathlib import Path

import attrs

import layered_llm.runtime.cpu.cpu_opening  # noqa: F401 - so that it counts among the imports; opening imports it late
from layered_llm.runtime.cpu.pool_size import bytes_of_page
from layered_llm.runtime.models.model_files import read_model
from layered_llm.runtime.opening import open_device
from layered_llm.service.model.checkpoint import is_on_hub, resolve
from layered_llm.service.model.hub import fetch
from layered_llm.service.settings.settings import load
from layered_llm.service.workers.runtime import monotonic_us, runtime_options

_KIB = 1024


@attrs.frozen(kw_only=True)
class RuntimeMemory:
    """Bytes."""

    imports: int
    """Most that was resident before the model was opened."""
    opened: int
    """Most that was resident when it was open."""
    weights: int
    """Of the checkpoint's tensors, as the file has them."""
    kv_pool: int
    """Of all pages, which take memory when they are first used."""

    @property
    def ratio(self) -> float:
        """Of what opening took to weights and pool."""
        return (self.opened - self.imports) / (self.weights + self.kv_pool)

    @property
    def ratio_to_weights(self) -> float:
        """The same while no page was used."""
        return (self.opened - self.imports) / self.weights


def main() -> None:
    """Measures this process with the settings of the environment, and prints the figures as JSON."""
    imports = _peak_bytes()
    settings = load()
    model = resolve(settings.model, fetch(settings.model) if settings.model and is_on_hub(settings.model) else None).path
    device = open_device(runtime_options(settings, model), now_us=monotonic_us)
    opened = _peak_bytes()
    pool = device.limits.pages * bytes_of_page(read_model(model).config, settings.page_size, settings.kv_dtype)
    memory = RuntimeMemory(imports=imports, opened=opened, weights=_weight_bytes(model), kv_pool=pool)
    sys.stdout.write(json.dumps(attrs.asdict(memory)))


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * _KIB for line in lines if line.startswith("VmHWM:"))


def _weight_bytes(model: Path) -> int:
    files = [model] if model.is_file() else list(model.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    main()
