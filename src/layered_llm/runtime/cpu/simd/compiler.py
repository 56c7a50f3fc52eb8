"""Machine code for a step's program: each piece is compiled once for a processor and a version of these files, then read from
a cache.

Must not know: what the program does, models, who wants it.

A piece's key is a digest of everything that decides its code: its name, the source files of this package, how weights lie in
memory, the version of LLVM and of its Python binding, the processor, and what is used of it.
"""

import ctypes
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import llvmlite
from llvmlite import binding

from layered_llm.runtime.checkpoint import matrices, panels
from layered_llm.runtime.checkpoint.panels import PanelLayout
from layered_llm.runtime.cpu.simd.code_cache import keep_code, read_code
from layered_llm.runtime.cpu.simd.kernels.emitter import CodeModule
from layered_llm.runtime.cpu.simd.kernels.machine import Machine
from layered_llm.runtime.cpu.simd.kernels.vectors import VectorModule
from layered_llm.runtime.cpu.simd.step_kernels import Needs
from layered_llm.runtime.cpu.simd.step_program import program_pieces
from layered_llm.runtime.cpu.simd.support import panels_for
from layered_llm.runtime.device.device import go_on

DefinePiece = Callable[[VectorModule], None]

_LOG: Final = logging.getLogger(__name__)


@attrs.frozen(kw_only=True, eq=False)
class Program:
    """The loaded code; its addresses are valid as long as this lives. Calls leave other Python threads running."""

    lead: Callable[[int], None]
    """Takes the control block's address."""
    follow: Callable[[int, int], None]
    """Takes the control block's address and the thread's number."""
    panels: PanelLayout
    """How matrices of blocks must lie for it."""
    needs: Needs
    """What it can compute; anything else it leaves undone."""
    _library: Any


def load_program(machine: Machine, needs: Needs, cache_directory: Path | None, check: Callable[[], None] = go_on) -> Program:
    """From the cache, or compiled and put there; None keeps nothing. A cache that cannot be written costs a line in the log.

    `check` is called before each piece is compiled; what it raises ends the compilation.
    """
    codes = _cached_or_compiled(machine, program_pieces(needs), cache_directory, check)
    library, addresses = link(codes, ("lead", "follow"), machine)
    lead = ctypes.CFUNCTYPE(None, ctypes.c_int64)(addresses["lead"])
    follow = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(addresses["follow"])
    return Program(lead=lead, follow=follow, panels=panels_for(machine), needs=needs, library=library)


def _cached_or_compiled(
    machine: Machine, pieces: Mapping[str, DefinePiece], cache_directory: Path | None, check: Callable[[], None]
) -> list[bytes]:
    keys = {name: piece_key(machine, name) for name in pieces}
    codes = {} if cache_directory is None else {name: read_code(cache_directory, key) for name, key in keys.items()}
    missing = [name for name in pieces if codes.get(name) is None]
    if missing:
        _LOG.info("compiling the CPU kernels for %s, once: %d, about a second each", machine.processor, len(missing))
    for number, name in enumerate(missing, start=1):
        check()
        code = codes[name] = compile_piece(machine, pieces[name])
        _LOG.info("compiled %s, %d of %d", name, number, len(missing))
        if cache_directory is not None and not keep_code(cache_directory, keys[name], code):
            cache_directory = None  # which has been said
    return [code for code in codes.values() if code is not None]


def compile_piece(machine: Machine, define: DefinePiece) -> bytes:
    """The object file of one piece of a step's program."""
    module = VectorModule(
        code=CodeModule.create(),
        lanes=machine.lanes,
        registers=machine.registers,
        has_byte_products=machine.has_byte_products,
    )
    define(module)
    return compile_module(module.code, machine)


def compile_module(module: CodeModule, machine: Machine) -> bytes:
    """An object file."""
    target = _target(machine)
    parsed = binding.parse_assembly(str(module.module))
    parsed.verify()
    passes = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    code: bytes = target.emit_object(parsed)
    return code


def _target(machine: Machine) -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(cpu=machine.processor, features=machine.features, opt=3, reloc="pic", codemodel="small")


def link(codes: Iterable[bytes], names: Sequence[str], machine: Machine) -> tuple[Any, Mapping[str, int]]:
    """Loads object files, which may call each other: what keeps them loaded, and the addresses of their functions `names`.

    By JITLink, which puts all sections into one block: the linker that is the default asks for each section's memory by itself,
    and ends the process where other mappings, such as a KV pool, leave none within the reach of a 32-bit relocation.
    """
    compiler = binding.create_lljit_compiler(_target(machine), use_jit_link=True)
    builder = binding.JITLibraryBuilder().add_current_process()
    for code in codes:
        builder.add_object_img(code)
    for name in names:
        builder.export_symbol(name)
    library = builder.link(compiler, "layered_llm")
    return (compiler, library), {name: library[name] for name in names}


def piece_key(machine: Machine, name: str) -> str:
    """The same only where the same code would come out."""
    digest = hashlib.sha256()
    for part in (name, llvmlite.__version__, binding.llvm_version_info, *attrs.astuple(machine)):
        digest.update(f"{part}\n".encode())
    sources = sorted(Path(__file__).parent.glob("*.py"))
    for path in (*sources, Path(matrices.__file__), Path(panels.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
