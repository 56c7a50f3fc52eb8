"""Logits of every token of a prompt, straight from what executes the layers, without device and sampling."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from layered_llm.domain.columns import pack_i8, pack_i32
from layered_llm.domain.ids import SlotId, StepId
from layered_llm.domain.limits import RuntimeLimits
from layered_llm.domain.messages.scheduler_runtime import ExecuteStep, OpenSlot
from layered_llm.domain.messages.text_scheduler import TokenSampling
from layered_llm.runtime.checkpoint.panels import in_panels
from layered_llm.runtime.checkpoint.weights import CheckpointReader, as_it_is
from layered_llm.runtime.cpu.process_limits import available_cores
from layered_llm.runtime.cpu.simd.compiler import load_program
from layered_llm.runtime.cpu.simd.crew import Crew
from layered_llm.runtime.cpu.simd.decoder import SimdDecoder, needs_of
from layered_llm.runtime.cpu.simd.kernels.machine import Machine
from layered_llm.runtime.cpu.simd.kv_pool import KvPool
from layered_llm.runtime.cpu.simd.memory_blocks import HugePages
from layered_llm.runtime.cpu.simd.support import find_support, panels_for
from layered_llm.runtime.cpu.torch_attention import KvCache
from layered_llm.runtime.cpu.torch_decoder import TorchDecoder, expand_model
from layered_llm.runtime.device.host_slots import HostSlots
from layered_llm.runtime.device.step_model import StepModel
from layered_llm.runtime.models.decoder_weights import DecoderWeights
from layered_llm.runtime.models.model_files import read_model

PAGE_TOKENS: Final = 16
_GREEDY: Final = TokenSampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, min_tokens=0, end_ids=())


def step_models(checkpoint: Path, prompt_tokens: int) -> Iterator[tuple[str, StepModel]]:
    """Each that can execute the model on this machine, with its name and a cache for one prompt."""
    files = read_model(checkpoint)
    pages, machine = _pages(prompt_tokens), find_support(files.config)
    arrange = as_it_is
    if isinstance(machine, Machine):
        arrange = partial(in_panels, layout=panels_for(machine), room=HugePages(None).take)
    reader = CheckpointReader.of(files.tensors(), dtype="auto", arrange=arrange)
    weights = files.family.build(files.config, reader)
    if isinstance(machine, Machine):
        yield "our kernels", _kernels(weights, pages, machine)
    cache = KvCache.allocate(files.config, pages=pages, page_size_tokens=PAGE_TOKENS)
    yield "our torch path", TorchDecoder(model=expand_model(weights), cache=cache, page_size_tokens=PAGE_TOKENS)


def _kernels(weights: DecoderWeights, pages: int, machine: Machine) -> StepModel:
    pool = KvPool.allocate(weights.config, pages=pages, page_size_tokens=PAGE_TOKENS, dtype="float32")
    program = load_program(machine, needs_of(weights, pool), None)
    return SimdDecoder(weights, pool, Crew(program, threads=available_cores()))


def prompt_logits(model: StepModel, prompt: Sequence[int], vocabulary_size: int) -> torch.Tensor:
    """Fp32 [tokens, vocabulary], computed in one step."""
    pages = range(_pages(len(prompt)))
    slots = HostSlots(
        RuntimeLimits(
            pages=len(pages),
            page_size_tokens=PAGE_TOKENS,
            slots=1,
            context_tokens=len(prompt) + 1,
            vocabulary_size=vocabulary_size,
        )
    )
    opening = OpenSlot(slot=SlotId(0), choice=0, prompt_ids=pack_i32(prompt), output_ids=b"", sampling=_GREEDY)
    step = ExecuteStep(
        step=StepId(1),
        retired=b"",
        opened=(opening,),
        page_slots=pack_i32([0]),
        page_offsets=pack_i32([0]),
        page_counts=pack_i32([len(pages)]),
        page_ids=pack_i32(pages),
        slots=pack_i32([0]),
        starts=pack_i32([0]),
        counts=pack_i32([len(prompt)]),
        samples=pack_i8([0]),
    )
    return torch.from_numpy(model.logits(model.hidden(slots.apply(step))).copy())


def _pages(tokens: int) -> int:
    return -(-(tokens + 1) // PAGE_TOKENS)
