"""The words through which Python tells the generated code what to do: which number is where.

Must not know: kernels, tensors, how the values come about.

All words are 64-bit integers. Addresses and strides are in bytes; fp32 numbers lie in the lower half of their word.
"""

import enum
from typing import Final

from layered_llm.runtime.cpu.simd.kernels.machine import LINE_BYTES

WORD_BYTES: Final = 8
LINE_WORDS: Final = LINE_BYTES // WORD_BYTES
"""Words of a cache line: what all threads write lies apart from what they only read."""


TASK_ROWS: Final = 32
"""A multiple of the numbers of every vector, of a panel's rows, and of a block of digits: a gate task gives whole ones."""


class Word(enum.IntEnum):
    """Of the control block that the threads of a step share."""

    GENERATION = 0
    """Of the barrier: grows whenever all threads have arrived."""
    SLEEPERS = 1
    ARRIVED = LINE_WORDS

    THREADS = 2 * LINE_WORDS
    COUNTERS = enum.auto()
    """Address of a cache line for each thread, and another for each: what has been taken of its share of the work."""
    SYSCALL = enum.auto()
    COMMAND = enum.auto()

    LAYERS = enum.auto()
    LAYER_TABLE = enum.auto()
    HIDDEN = enum.auto()
    INTERMEDIATE = enum.auto()
    HEADS = enum.auto()
    KV_HEADS = enum.auto()
    HEAD_DIM = enum.auto()
    NORM_EPS = enum.auto()
    SCORE_SCALE = enum.auto()
    ONE = enum.auto()
    """The fp32 number 1."""
    EMBEDDING = enum.auto()
    """A task whose rows are the vocabulary's."""
    FINAL_NORM = enum.auto()
    HEAD_TASKS = enum.auto()
    HEAD_TASK_COUNT = enum.auto()
    VOCABULARY = enum.auto()

    KV_POOL = enum.auto()
    KV_LAYER_BYTES = enum.auto()
    KV_NUMBER_BYTES = enum.auto()
    """4 for fp32, 2 for fp16."""
    PAGE_SIZE = enum.auto()

    TOKENS = enum.auto()
    TOKEN_IDS = enum.auto()
    CELLS = enum.auto()
    POSITIONS = enum.auto()
    """int64 [tokens], as ids and cells."""
    COSINES = enum.auto()
    """fp32 [positions, head_dim / 2], as the sines."""
    SINES = enum.auto()
    ITEMS = enum.auto()
    ITEM_COUNT = enum.auto()
    HEAD_PLACES = enum.auto()
    """int64 [head tokens]: which rows of the residual stream the head is for."""
    HEAD_TOKENS = enum.auto()

    X = enum.auto()
    """fp32 [tokens, hidden]: the residual stream."""
    KEPT = enum.auto()
    """fp32 [tokens, hidden]: of the tokens that the head is for, one after the other, from the last attention on."""
    ADDED = enum.auto()
    """fp32 [tokens, hidden]: what a block adds to it."""
    NORMED = enum.auto()
    """fp32 [tokens, hidden]; or digits in the same bytes, if that is what the next tasks take."""
    QKV = enum.auto()
    """fp32 [tokens, (heads + 2 kv_heads) head_dim]."""
    QUERIES = enum.auto()
    """fp32 [kv_heads, tokens, queries of a kv head, head_dim]: rotated and scaled. Behind the last attention, what is kept of
    `ATTENDED`."""
    ATTENDED = enum.auto()
    """fp32 [tokens, heads * head_dim], or digits."""
    ACTIVATED = enum.auto()
    """fp32 [tokens, intermediate], or digits."""
    LOGITS = enum.auto()
    """fp32 [head tokens, vocabulary]."""
    SCRATCH = enum.auto()
    """Each thread's own part is `SCRATCH_BYTES` behind that of the thread before."""
    SCRATCH_BYTES = enum.auto()
    GATE_OFFSET = enum.auto()
    """Where in a thread's part the outputs of a gate task begin, fp32 [tokens, TASK_ROWS]; those of its partner follow."""


class LayerWord(enum.IntEnum):
    """Of a layer's row in the layer table."""

    ATTENTION_NORM = 0
    MLP_NORM = 1
    QUERY_NORM = 2
    """0 where the family has none, as the key's."""
    KEY_NORM = 3
    QKV_TASKS = 4
    QKV_TASK_COUNT = 5
    OUTPUT_TASKS = 6
    OUTPUT_TASK_COUNT = 7
    GATE_UP_TASKS = 8
    """Pairs: rows of the gate, then the same rows of the up projection."""
    GATE_UP_PAIR_COUNT = 9
    DOWN_TASKS = 10
    DOWN_TASK_COUNT = 11


class TaskWord(enum.IntEnum):
    """Of a task: a few neighbouring rows of a weight matrix, which one thread multiplies."""

    FORMAT = 0
    WEIGHTS = 1
    STRIDE = 2
    """From a row to the next; of a format with blocks, from a panel to the next."""
    ROWS = 3
    OUTPUT = 4
    """Place of the first row's result among a token's outputs."""
    BIAS = 5
    """Address of the rows' biases, 0 without."""
    TAKES_DIGITS = 6
    """1 where the weights are multiplied with digits of activations, not with fp32 numbers."""


class ItemWord(enum.IntEnum):
    """Of an attention item: neighbouring tokens of one row of the step."""

    PAGE_TABLE = 0
    """Address of the row's page ids, int32."""
    FIRST = 1
    """Place of the first token among the step's tokens."""
    COUNT = 2
    START = 3
    """The first token's position."""


class Command(enum.IntEnum):
    """What the threads do next."""

    STOP = 0
    LAYERS = 1
    """From token ids to the residual stream behind the last layer."""
    HEAD = 2
    """From rows of the residual stream to their logits."""
    STEP = 3
    """Both, one after the other: the threads are woken once. Behind the last attention, only what the head is for goes on."""
