"""The program that every thread of a step runs: a decoder's layers and its head, phase by phase, with a barrier between phases.

Must not know: threads' life, tensors, what is in the control words but where.

Phases of a layer: norm, queries/keys/values, rotation and store, attention, output, norm, gate and up, down. Within a phase
threads take what is left to do (`shared_work`); which thread computes a number never changes it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import attrs

from layered_llm.runtime.matrices import WeightFormat
from layered_llm.runtime.simd.attention import AttentionKernels
from layered_llm.runtime.simd.control import (
    TASK_ROWS,
    WORD_BYTES,
    Command,
    ItemWord,
    LayerWord,
    TaskWord,
    Word,
)
from layered_llm.runtime.simd.emitter import CodeModule, Emitter, Function, Int
from layered_llm.runtime.simd.linear import LinearKernels, expand_row
from layered_llm.runtime.simd.pointwise import define_add_bias, define_add_norm, define_gated
from layered_llm.runtime.simd.rotation import define_copy, define_rotate
from layered_llm.runtime.simd.synchronization import emit_barrier, shared_work, word
from layered_llm.runtime.simd.vectors import F32_BYTES, VectorModule, Vectors

FORMAT_NUMBERS: Final = {weight_format: number for number, weight_format in enumerate(WeightFormat)}
"""How a task names its format."""
TASK_BYTES: Final = WORD_BYTES * len(TaskWord)
_LAYER_BYTES: Final = WORD_BYTES * len(LayerWord)
_ITEM_BYTES: Final = WORD_BYTES * len(ItemWord)
_GATE_STRIDE: Final = TASK_ROWS * F32_BYTES


@attrs.frozen(eq=False)
class Words:
    """The control words of a function, read where they are needed."""

    emitter: Emitter
    control: Int
    thread: Int

    def __getitem__(self, name: Word) -> Int:
        return word(self.emitter, self.control, name)

    def address(self, name: Word) -> Int:
        """Where the word itself lies."""
        return self.control + WORD_BYTES * name

    @property
    def scratch(self) -> Int:
        """The thread's own."""
        return self[Word.SCRATCH] + self.thread * self[Word.SCRATCH_BYTES]

    def shared_work(self, count: Int) -> AbstractContextManager[Int]:
        """For each number below `count` that the thread takes."""
        return shared_work(self.emitter, self.control, self.thread, count)

    def barrier(self, module: CodeModule) -> None:
        emit_barrier(module, self.emitter, self.control, self.thread)

    @property
    def group(self) -> Int:
        return self[Word.HEADS] // self[Word.KV_HEADS]

    @property
    def page_bytes(self) -> Int:
        """A page of one layer."""
        return self[Word.KV_HEADS] * self.head_page_bytes

    @property
    def head_page_bytes(self) -> Int:
        """Keys and values of one head in a page."""
        return self[Word.PAGE_SIZE] * self.kv_row_bytes * 2

    @property
    def kv_row_bytes(self) -> Int:
        return self[Word.HEAD_DIM] * self[Word.KV_NUMBER_BYTES]


@attrs.frozen(kw_only=True, eq=False)
class Kernels:
    """The functions that phases call."""

    task: Function
    expand: Function
    add_norm: Function
    add_bias: Function
    gated: Function
    rotate: dict[int, Function]
    """By the bytes of a number, as `copy` and `attend`."""
    copy: dict[int, Function]
    attend: dict[int, Function]


def define_program(module: VectorModule) -> None:
    """Exports `lead(control)`, which carries out the command in the control words, and `follow(control, thread)`, which takes
    part in commands until it is told to stop.
    """
    code, phases = module.code, _define_phases(module, _define_kernels(module))
    layers, head = _define_layers(code, phases), _define_head(code, phases)

    def carry_out(k: Emitter, control: Int, thread: Int) -> None:
        def step() -> None:
            layers(control, thread)
            emit_barrier(code, k, control, thread)
            head(control, thread)

        cases = [
            (Command.LAYERS, lambda: layers(control, thread)),
            (Command.HEAD, lambda: head(control, thread)),
            (Command.STEP, step),
        ]
        k.choose(word(k, control, Word.COMMAND), cases)
        emit_barrier(code, k, control, thread)

    def lead(k: Emitter, control: Int) -> None:
        leader = k.integer(0)
        emit_barrier(code, k, control, leader)
        with k.when(word(k, control, Word.COMMAND).differs(Command.STOP)):
            carry_out(k, control, leader)

    def follow(k: Emitter, control: Int, thread: Int) -> None:
        stays = k.variable(1)
        with k.repeat_while(lambda: stays.get().differs(0)):
            emit_barrier(code, k, control, thread)
            stays.set(word(k, control, Word.COMMAND))
            with k.when(stays.get().differs(Command.STOP)):
                carry_out(k, control, thread)

    code.function("lead", lead, 1, exported=True)
    code.function("follow", follow, 2, exported=True)


def _define_kernels(module: VectorModule) -> Kernels:
    linear = LinearKernels(module=module)
    by_bytes = {F32_BYTES: False, 2: True}
    return Kernels(
        task=_define_task(module.code, {weight_format: linear.define(weight_format) for weight_format in WeightFormat}),
        expand=_define_expand(module),
        add_norm=define_add_norm(module),
        add_bias=define_add_bias(module),
        gated=define_gated(module),
        rotate={size: define_rotate(module, is_half=is_half) for size, is_half in by_bytes.items()},
        copy={size: define_copy(module, is_half=is_half) for size, is_half in by_bytes.items()},
        attend={size: AttentionKernels(module=module, is_half=is_half).define() for size, is_half in by_bytes.items()},
    )


def _define_task(module: CodeModule, linears: dict[WeightFormat, Function]) -> Function:
    """Multiplies all tokens with the rows of one task, without bias.

    Arguments: task, x, columns, y (the first row's result for the first token), y_stride, tokens, scratch.
    """

    def emit(k: Emitter, *arguments: Int) -> None:
        task, x, columns, y, y_stride, tokens, scratch = arguments
        weights, stride, rows = (
            k.load_int(task + WORD_BYTES * name) for name in (TaskWord.WEIGHTS, TaskWord.STRIDE, TaskWord.ROWS)
        )

        def call(function: Function) -> Callable[[], None]:
            return lambda: function(x, columns * F32_BYTES, weights, stride, columns, y, y_stride, tokens, rows, scratch)

        cases = [(FORMAT_NUMBERS[weight_format], call(function)) for weight_format, function in linears.items()]
        k.choose(k.load_int(task + WORD_BYTES * TaskWord.FORMAT), cases)

    return module.function("task", emit, 7)


def _define_expand(module: VectorModule) -> Function:
    """Writes one weight row as fp32. Arguments: format number, weights, stride, row, columns, target."""

    def emit(v: Vectors, *arguments: Int) -> None:
        number, *rest = arguments

        def case(weight_format: WeightFormat) -> Callable[[], None]:
            return lambda: expand_row(v, weight_format, *rest)

        v.emitter.choose(number, [(FORMAT_NUMBERS[weight_format], case(weight_format)) for weight_format in WeightFormat])

    return module.define("expand", emit, 6)


@attrs.frozen(kw_only=True, eq=False)
class Phases:
    """Functions without a barrier inside. The first arguments are the control block's address and the thread's number."""

    embed: Function
    norm: Function
    """Further: added (0: nothing), weight."""
    final_norm: Function
    """Of the tokens that the head is for."""
    linear: Function
    """Further: tokens, tasks, count, x, columns, y, outputs."""
    rotate: Function
    """Further: layer row, KV address of the layer."""
    attend: Function
    """Further: KV address of the layer."""
    gate_up: Function
    """Further: tasks, pairs."""
    add: Function
    """The last layer's result onto the residual stream."""


def _define_phases(module: VectorModule, kernels: Kernels) -> Phases:
    def defined(name: str, emit: Callable[..., None], parameters: int) -> Function:
        def of_thread(k: Emitter, control: Int, thread: Int, *rest: Int) -> None:
            emit(Words(k, control, thread), kernels, *rest)

        return module.code.function(f"phase_{name}", of_thread, 2 + parameters)

    def add(v: Vectors, control: Int, thread: Int) -> None:
        _add(v, Words(v.emitter, control, thread))

    return Phases(
        embed=defined("embed", _embed, 0),
        norm=defined("norm", _norm, 2),
        final_norm=defined("final_norm", _final_norm, 0),
        linear=defined("linear", _linear, 7),
        rotate=defined("rotate", _rotate, 2),
        attend=defined("attend", _attend, 1),
        gate_up=defined("gate_up", _gate_up, 2),
        add=module.define("phase_add", add, 2),
    )


def _embed(words: Words, kernels: Kernels) -> None:
    k, task = words.emitter, words[Word.EMBEDDING]
    number, weights, stride = (
        k.load_int(task + WORD_BYTES * name) for name in (TaskWord.FORMAT, TaskWord.WEIGHTS, TaskWord.STRIDE)
    )
    with words.shared_work(words[Word.TOKENS]) as token:
        row = k.load_int(words[Word.TOKEN_IDS] + token * WORD_BYTES)
        target = words[Word.X] + token * words[Word.HIDDEN] * F32_BYTES
        kernels.expand(number, weights, stride, row, words[Word.HIDDEN], target)


def _norm(words: Words, kernels: Kernels, added: Int, weight: Int) -> None:
    with words.shared_work(words[Word.TOKENS]) as token:
        offset = token * words[Word.HIDDEN] * F32_BYTES
        onto = added.equals(0).choose(0, added + offset)
        x, normed = words[Word.X] + offset, words[Word.NORMED] + offset
        kernels.add_norm(x, onto, weight, normed, words[Word.HIDDEN], words.address(Word.NORM_EPS))


def _final_norm(words: Words, kernels: Kernels) -> None:
    k = words.emitter
    row_bytes = words[Word.HIDDEN] * F32_BYTES
    with words.shared_work(words[Word.HEAD_TOKENS]) as number:
        place = k.load_int(words[Word.HEAD_PLACES] + number * WORD_BYTES)
        x, normed = words[Word.X] + place * row_bytes, words[Word.NORMED] + number * row_bytes
        kernels.add_norm(x, 0, words[Word.FINAL_NORM], normed, words[Word.HIDDEN], words.address(Word.NORM_EPS))


def _linear(words: Words, kernels: Kernels, *arguments: Int) -> None:
    tokens, tasks, count, x, columns, y, outputs = arguments
    k, scratch = words.emitter, words.scratch
    stride = outputs * F32_BYTES
    with words.shared_work(count) as number:
        task = tasks + number * TASK_BYTES
        target = y + k.load_int(task + WORD_BYTES * TaskWord.OUTPUT) * F32_BYTES
        kernels.task(task, x, columns, target, stride, tokens, scratch)
        _add_bias(words, kernels, task, target, stride, tokens)


def _add_bias(words: Words, kernels: Kernels, *arguments: Int) -> None:
    task, target, stride, tokens = arguments
    k = words.emitter
    bias, rows = k.load_int(task + WORD_BYTES * TaskWord.BIAS), k.load_int(task + WORD_BYTES * TaskWord.ROWS)
    with k.when(bias.differs(0)), k.loop(0, tokens) as token:
        kernels.add_bias(target + token * stride, bias, rows)


def _rotate(words: Words, kernels: Kernels, layer: Int, kv: Int) -> None:
    """One number for each token and kv head: its queries, its key and its value."""
    k, head_dim, kv_heads, group = words.emitter, words[Word.HEAD_DIM], words[Word.KV_HEADS], words.group
    head_bytes, scratch = head_dim * F32_BYTES, words.scratch
    query_norm, key_norm = (k.load_int(layer + WORD_BYTES * n) for n in (LayerWord.QUERY_NORM, LayerWord.KEY_NORM))
    eps, one, scale = (words.address(name) for name in (Word.NORM_EPS, Word.ONE, Word.SCORE_SCALE))
    with words.shared_work(words[Word.TOKENS] * kv_heads) as number:
        token, head = number // kv_heads, number % kv_heads
        angles = k.load_int(words[Word.POSITIONS] + token * WORD_BYTES) * (head_bytes // 2)
        cosines, sines = words[Word.COSINES] + angles, words[Word.SINES] + angles
        qkv = words[Word.QKV] + token * (words[Word.HEADS] + kv_heads * 2) * head_bytes
        queries = words[Word.QUERIES] + (head * words[Word.TOKENS] + token) * group * head_bytes
        with k.loop(0, group) as query:
            source, target = qkv + (head * group + query) * head_bytes, queries + query * head_bytes
            kernels.rotate[F32_BYTES](source, query_norm, eps, cosines, sines, head_dim, scale, target, scratch)
        key = qkv + (words[Word.HEADS] + head) * head_bytes
        value = key + kv_heads * head_bytes
        cell = k.load_int(words[Word.CELLS] + token * WORD_BYTES)
        place = kv + ((cell // words[Word.PAGE_SIZE]) * kv_heads + head) * words.head_page_bytes
        place += cell % words[Word.PAGE_SIZE] * words.kv_row_bytes

        def store(size: int) -> None:
            kernels.rotate[size](key, key_norm, eps, cosines, sines, head_dim, one, place, scratch)
            kernels.copy[size](value, head_dim, place + words[Word.PAGE_SIZE] * words.kv_row_bytes)

        _by_number_bytes(words, store)


def _attend(words: Words, kernels: Kernels, kv: Int) -> None:
    """One number for each item and kv head."""
    k, kv_heads, group, head_dim = words.emitter, words[Word.KV_HEADS], words.group, words[Word.HEAD_DIM]
    head_bytes, scratch = head_dim * F32_BYTES, words.scratch
    with words.shared_work(words[Word.ITEM_COUNT] * kv_heads) as number:
        item, head = words[Word.ITEMS] + number // kv_heads * _ITEM_BYTES, number % kv_heads
        table, first, count, start = (k.load_int(item + WORD_BYTES * name) for name in ItemWord)
        queries = words[Word.QUERIES] + (head * words[Word.TOKENS] + first) * group * head_bytes
        target = words[Word.ATTENDED] + (first * words[Word.HEADS] + head * group) * head_bytes
        keys, stride = kv + head * words.head_page_bytes, words[Word.HEADS] * head_bytes
        page = (keys, words.page_bytes, words[Word.PAGE_SIZE])
        _by_number_bytes(
            words,
            lambda size: kernels.attend[size](queries, count, group, head_dim, start, table, *page, target, stride, scratch),
        )


def _by_number_bytes(words: Words, emit: Callable[[int], None]) -> None:
    """Emits `emit` for fp32 and for fp16 numbers in the KV cache."""
    words.emitter.choose(words[Word.KV_NUMBER_BYTES], [(F32_BYTES, lambda: emit(F32_BYTES)), (2, lambda: emit(2))])


def _gate_up(words: Words, kernels: Kernels, tasks: Int, pairs: Int) -> None:
    k, tokens, columns = words.emitter, words[Word.TOKENS], words[Word.HIDDEN]
    scratch = words.scratch
    gate = scratch + words[Word.GATE_OFFSET]
    up = gate + tokens * _GATE_STRIDE
    with words.shared_work(pairs) as number:
        gate_task = tasks + number * (2 * TASK_BYTES)
        rows, output = (k.load_int(gate_task + WORD_BYTES * name) for name in (TaskWord.ROWS, TaskWord.OUTPUT))
        for task, target in ((gate_task, gate), (gate_task + TASK_BYTES, up)):
            kernels.task(task, words[Word.NORMED], columns, target, _GATE_STRIDE, tokens, scratch)
            _add_bias(words, kernels, task, target, k.integer(_GATE_STRIDE), tokens)
        with k.loop(0, tokens) as token:
            activated = words[Word.ACTIVATED] + (token * words[Word.INTERMEDIATE] + output) * F32_BYTES
            kernels.gated(gate + token * _GATE_STRIDE, up + token * _GATE_STRIDE, activated, rows)


def _add(v: Vectors, words: Words) -> None:
    with words.shared_work(words[Word.TOKENS]) as token:
        row_bytes = words[Word.HIDDEN] * F32_BYTES
        with v.emitter.loop(token * row_bytes, (token + 1) * row_bytes, v.vector_bytes) as offset:
            x = words[Word.X] + offset
            v.store(x, v.load(x) + v.load(words[Word.ADDED] + offset))


def _define_layers(module: CodeModule, phases: Phases) -> Function:
    """All layers. Arguments: control, thread."""

    def emit(k: Emitter, control: Int, thread: Int) -> None:
        words = Words(k, control, thread)
        phases.embed(control, thread)
        words.barrier(module)
        added = k.variable(0)
        with k.loop(0, words[Word.LAYERS]) as layer:
            _emit_layer(module, words, phases, layer, added.get())
            added.set(words[Word.ADDED])
        phases.add(control, thread)

    return module.function("layers", emit, 2)


def _emit_layer(module: CodeModule, words: Words, phases: Phases, layer: Int, added: Int) -> None:
    k, hidden, tokens = words.emitter, words[Word.HIDDEN], words[Word.TOKENS]
    row = words[Word.LAYER_TABLE] + layer * _LAYER_BYTES
    kv = words[Word.KV_POOL] + layer * words[Word.KV_LAYER_BYTES]
    query_size = words[Word.HEADS] * words[Word.HEAD_DIM]
    qkv_size = query_size + words[Word.KV_HEADS] * words[Word.HEAD_DIM] * 2

    def run(phase: Function, *arguments: Int) -> None:
        phase(words.control, words.thread, *arguments)
        words.barrier(module)

    def of_layer(*names: LayerWord) -> tuple[Int, ...]:
        return tuple(k.load_int(row + WORD_BYTES * name) for name in names)

    run(phases.norm, added, *of_layer(LayerWord.ATTENTION_NORM))
    tasks = of_layer(LayerWord.QKV_TASKS, LayerWord.QKV_TASK_COUNT)
    run(phases.linear, tokens, *tasks, words[Word.NORMED], hidden, words[Word.QKV], qkv_size)
    run(phases.rotate, row, kv)
    run(phases.attend, kv)
    tasks = of_layer(LayerWord.OUTPUT_TASKS, LayerWord.OUTPUT_TASK_COUNT)
    run(phases.linear, tokens, *tasks, words[Word.ATTENDED], query_size, words[Word.ADDED], hidden)
    run(phases.norm, words[Word.ADDED], *of_layer(LayerWord.MLP_NORM))
    run(phases.gate_up, *of_layer(LayerWord.GATE_UP_TASKS, LayerWord.GATE_UP_PAIR_COUNT))
    tasks = of_layer(LayerWord.DOWN_TASKS, LayerWord.DOWN_TASK_COUNT)
    run(phases.linear, tokens, *tasks, words[Word.ACTIVATED], words[Word.INTERMEDIATE], words[Word.ADDED], hidden)


def _define_head(module: CodeModule, phases: Phases) -> Function:
    """Norm and head, of the tokens at `Word.HEAD_PLACES`. Arguments: control, thread."""

    def emit(k: Emitter, control: Int, thread: Int) -> None:
        words = Words(k, control, thread)
        phases.final_norm(control, thread)
        words.barrier(module)
        tasks = (words[Word.HEAD_TASKS], words[Word.HEAD_TASK_COUNT])
        outputs = (words[Word.NORMED], words[Word.HIDDEN], words[Word.LOGITS], words[Word.VOCABULARY])
        phases.linear(control, thread, words[Word.HEAD_TOKENS], *tasks, *outputs)

    return module.function("head", emit, 2)
