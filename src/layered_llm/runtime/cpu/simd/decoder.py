"""A decoder that executes steps with generated kernels: sets the control words, and lets the crew work.

Must not know: checkpoints, sampling, policy.

Buffers are reused from step to step: what a call returns is overwritten by the next one.
"""

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.cpu.simd.control import TASK_ROWS, Command, ItemWord, Word
from layered_llm.runtime.cpu.simd.crew import Crew
from layered_llm.runtime.cpu.simd.kernels.attention import scratch_bytes
from layered_llm.runtime.cpu.simd.kernels.linear import scratch_floats
from layered_llm.runtime.cpu.simd.kernels.machine import LINE_BYTES
from layered_llm.runtime.cpu.simd.kv_pool import KvPool
from layered_llm.runtime.cpu.simd.memory_blocks import GrowingBuffers, address_of, whole_lines
from layered_llm.runtime.cpu.simd.step_kernels import Needs
from layered_llm.runtime.cpu.simd.tasks import ModelTables
from layered_llm.runtime.device.step_inputs import Float32s, Int64s, StepInputs
from layered_llm.runtime.models.decoder_weights import DecoderWeights
from layered_llm.runtime.models.model_config import ModelConfig
from layered_llm.runtime.models.rotation_table import RotationTable


def needs_of(weights: DecoderWeights, pool: KvPool) -> Needs:
    """What a program for this model must compute."""
    return Needs(formats=frozenset(matrix.format for matrix in weights.matrices()), kv_number_bytes=pool.number_bytes)


_ITEM_QUERIES: Final = 48
"""Queries of an attention item, at least one token's: their sums and scores stay in a core's first cache."""
_F32_BYTES: Final = 4


class SimdDecoder:
    """Token ids to logits."""

    def __init__(self, weights: DecoderWeights, pool: KvPool, crew: Crew) -> None:
        config = weights.config
        if not needs_of(weights, pool).are_met_by(crew.needs):
            raise InvariantViolated("the program was generated for other formats than the model and its KV pool have")
        self._config = config
        self._pool = pool
        self._crew = crew
        self._tables = ModelTables.of(weights, crew.panels)
        self._rotations = RotationTable(config.rope, config.head_dim)
        self._rotated_positions = 0
        """That the tables cover to which the words point."""
        columns = _token_columns(config)
        self._token_words = tuple(columns)
        self._token_buffers = GrowingBuffers(tuple(columns.values()))
        self._logits = GrowingBuffers((config.vocabulary_size,))
        self._scratch: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._scratch_tokens = 0
        """Counted apart: where memory ends between the buffers and the scratch, the next step asks for the scratch again."""
        self._items: Int64s = np.zeros(0, np.int64)
        self._places: Int64s = np.zeros(0, np.int64)
        self._block_tokens = max(1, _ITEM_QUERIES // (config.heads // config.kv_heads))
        self._says_last_step = False
        """The words still say all of the step before, and its arrays lie where they say."""
        self._set_model_words()

    def hidden(self, inputs: StepInputs) -> Float32s:
        """Runs all tokens of a step, storing their keys and values: fp32 [tokens, hidden], not yet normalised."""
        self._says_last_step = False
        x = self._set_step(inputs)
        self._crew.carry_out(Command.LAYERS)
        return x

    def logits(self, hidden: Float32s) -> Float32s:
        """[tokens, vocabulary] of rows that `hidden` returned."""
        self._says_last_step = False
        kept = np.ascontiguousarray(hidden)
        self._hold_tokens(len(kept))
        logits = self._set_head(np.arange(len(kept)))
        self._crew.control[Word.X] = address_of(kept)
        self._crew.carry_out(Command.HEAD)
        return logits

    def sampled_logits(self, inputs: StepInputs) -> Float32s:
        """[sampled rows, vocabulary]; the threads are woken once for layers and head."""
        if inputs.continues and self._says_last_step:
            self._set_next_positions()
        else:
            self._set_step(inputs)
            self._set_head(inputs.logit_places)
            self._says_last_step = True
        self._crew.carry_out(Command.STEP)
        return self._logits.matrices[0][: len(self._places)]

    def close(self) -> None:
        """Ends the threads."""
        self._crew.close()

    def _set_step(self, inputs: StepInputs) -> Float32s:
        """The residual stream of the step's tokens, [tokens, hidden]."""
        control, count = self._crew.control, len(inputs.token_ids)
        self._hold_tokens(count)
        self._set_rotations(int(inputs.ends.max()))
        x, self._items = self._token_buffers.matrices[0], attention_items(inputs, self._block_tokens)
        control[Word.X] = address_of(x)
        control[Word.TOKENS] = count
        control[Word.TOKEN_IDS] = address_of(inputs.token_ids)
        control[Word.POSITIONS] = address_of(inputs.positions)
        control[Word.CELLS] = address_of(inputs.cells)
        control[Word.ITEMS] = address_of(self._items)
        control[Word.ITEM_COUNT] = len(self._items)
        return x[:count]

    def _set_next_positions(self) -> None:
        """Each row one token further: its arrays were moved on in place, and those with the most positions still have them."""
        self._items[:, ItemWord.START] += 1
        self._set_rotations(int(self._items[0, ItemWord.START]) + 1)

    def _set_head(self, places: Int64s) -> Float32s:
        """Where the logits of the tokens at `places` will be, [places, vocabulary]."""
        control, self._places = self._crew.control, places
        if self._logits.hold(len(places)):
            control[Word.LOGITS] = address_of(self._logits.matrices[0])
        control[Word.HEAD_PLACES] = address_of(places)
        control[Word.HEAD_TOKENS] = len(places)
        return self._logits.matrices[0][: len(places)]

    def _hold_tokens(self, tokens: int) -> None:
        if self._token_buffers.hold(tokens):
            for word, matrix in zip(self._token_words, self._token_buffers.matrices, strict=True):
                self._crew.control[word] = address_of(matrix)
        if self._scratch_tokens < self._token_buffers.rows:
            self._set_scratch(self._token_buffers.rows)
            self._scratch_tokens = self._token_buffers.rows

    def _set_scratch(self, tokens: int) -> None:
        """Room for each thread: a task's rows as fp32 and a gate task's results, or an attention item."""
        control, config = self._crew.control, self._config
        columns = (config.hidden_size, config.query_size, config.intermediate_size)
        panel = whole_lines(scratch_floats(TASK_ROWS, max(columns)) * _F32_BYTES)
        gate = 2 * tokens * TASK_ROWS * _F32_BYTES
        group = config.heads // config.kv_heads
        item = scratch_bytes(group * self._block_tokens, config.head_dim)
        each = whole_lines(max(panel + gate, item))
        control[Word.GATE_OFFSET] = panel
        if each > control[Word.SCRATCH_BYTES]:
            self._scratch = np.zeros(each * self._crew.threads + LINE_BYTES, np.uint8)
            control[Word.SCRATCH_BYTES] = each
            control[Word.SCRATCH] = address_of(self._scratch) + -address_of(self._scratch) % LINE_BYTES

    def _set_rotations(self, positions: int) -> None:
        if positions <= self._rotated_positions:
            return
        cosines, sines = self._rotations.covering(positions)
        self._rotated_positions = len(cosines)
        self._crew.control[Word.COSINES] = address_of(cosines)
        self._crew.control[Word.SINES] = address_of(sines)

    def _set_model_words(self) -> None:
        config, tables, pool = self._config, self._tables, self._pool
        values = {
            Word.LAYERS: config.layer_count,
            Word.LAYER_TABLE: address_of(tables.layers),
            Word.HIDDEN: config.hidden_size,
            Word.INTERMEDIATE: config.intermediate_size,
            Word.HEADS: config.heads,
            Word.KV_HEADS: config.kv_heads,
            Word.HEAD_DIM: config.head_dim,
            Word.NORM_EPS: _as_word(config.norm_eps),
            Word.SCORE_SCALE: _as_word(config.head_dim**-0.5),
            Word.ONE: _as_word(1.0),
            Word.EMBEDDING: address_of(tables.embedding),
            Word.FINAL_NORM: address_of(tables.weights.norm),
            Word.HEAD_TASKS: address_of(tables.head),
            Word.HEAD_TASK_COUNT: len(tables.head),
            Word.VOCABULARY: config.vocabulary_size,
            Word.KV_POOL: pool.address,
            Word.KV_LAYER_BYTES: pool.layer_bytes,
            Word.KV_NUMBER_BYTES: pool.number_bytes,
            Word.PAGE_SIZE: pool.page_size_tokens,
        }
        for word, value in values.items():
            self._crew.control[word] = value


def attention_items(inputs: StepInputs, block_tokens: int) -> Int64s:
    """Rows of `ItemWord`s: each row of the step in blocks of so many tokens, those with the most positions first."""
    items = np.empty((inputs.slots.size, len(ItemWord)), np.int64)
    items[:, ItemWord.PAGE_TABLE] = address_of(inputs.page_tables) + inputs.slots * inputs.page_tables.strides[0]
    items[:, ItemWord.FIRST] = np.cumsum(inputs.counts) - inputs.counts
    items[:, ItemWord.COUNT] = inputs.counts
    items[:, ItemWord.START] = inputs.starts
    if inputs.counts.max() > block_tokens:
        items = _cut(items, block_tokens)
    work = (items[:, ItemWord.START] + items[:, ItemWord.COUNT]) * items[:, ItemWord.COUNT]
    return items[np.argsort(-work, kind="stable")]


def _cut(items: Int64s, block_tokens: int) -> Int64s:
    counts = items[:, ItemWord.COUNT]
    blocks = -(-counts // block_tokens)
    cut = np.repeat(items, blocks, axis=0)
    offsets = (np.arange(len(cut)) - np.repeat(np.cumsum(blocks) - blocks, blocks)) * block_tokens
    cut[:, ItemWord.FIRST] += offsets
    cut[:, ItemWord.START] += offsets
    cut[:, ItemWord.COUNT] = np.minimum(block_tokens, cut[:, ItemWord.COUNT] - offsets)
    return cut


def _token_columns(config: ModelConfig) -> dict[Word, int]:
    """Of what a step holds of each token; the residual stream is the first."""
    return {
        Word.X: config.hidden_size,
        Word.KEPT: config.hidden_size,
        Word.ADDED: config.hidden_size,
        Word.NORMED: config.hidden_size,
        Word.QKV: config.query_size + 2 * config.kv_size,
        Word.QUERIES: config.query_size,
        Word.ATTENDED: config.query_size,
        Word.ACTIVATED: config.intermediate_size,
    }


def _as_word(number: float) -> int:
    """An fp32 number in the lower half of a word."""
    word: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return word
