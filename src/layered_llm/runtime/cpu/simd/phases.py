"""The phases of a step: what all threads do between two barriers.

Must not know: in which order they come, threads' life, tensors.

Within a phase threads take what is left to do (`shared_work`); which thread computes a number never changes it.
"""

from collections.abc import Callable
from typing import Final

import attrs

from layered_llm.runtime.cpu.simd.control import TASK_ROWS, WORD_BYTES, ItemWord, LayerWord, TaskWord, Word
from layered_llm.runtime.cpu.simd.kernels.emitter import Emitter, Function, Int
from layered_llm.runtime.cpu.simd.kernels.vectors import F32_BYTES, VectorModule, Vectors
from layered_llm.runtime.cpu.simd.step_kernels import Kernels
from layered_llm.runtime.cpu.simd.step_words import Words

_TASK_BYTES: Final = WORD_BYTES * len(TaskWord)
_ITEM_BYTES: Final = WORD_BYTES * len(ItemWord)
_GATE_STRIDE: Final = TASK_ROWS * F32_BYTES


@attrs.frozen(kw_only=True, eq=False)
class Phases:
    """Functions without a barrier inside. The first arguments are the control block's address and the thread's number."""

    embed: Function
    norm: Function
    """Further: x, tokens, added (0: nothing), weight, tasks that read it."""
    final_norm: Function
    """Of the tokens that the head is for. Further: x, whether its rows are at their places (1) or one after the other (0)."""
    linear: Function
    """Further: tokens, tasks, count, x, columns, y, outputs."""
    rotate: Function
    """Further: layer row, KV address of the layer."""
    attend: Function
    """Further: KV address of the layer, tasks that read it."""
    keep: Function
    """Copies what the tokens that the head is for have in the residual stream and have attended to, one after the other."""
    gate_up: Function
    """Further: tokens, tasks, pairs, tasks that read it."""
    add: Function
    """The last layer's result onto the residual stream. Further: x, tokens."""


def define_phases(module: VectorModule, kernels: Kernels) -> Phases:
    def defined(name: str, emit: Callable[..., None], parameters: int) -> Function:
        def of_thread(k: Emitter, control: Int, thread: Int, *rest: Int) -> None:
            emit(Words(k, control, thread), kernels, *rest)

        return module.code.function(f"phase_{name}", of_thread, 2 + parameters)

    def of_vectors(emit: Callable[..., None]) -> Callable[..., None]:
        return lambda v, control, thread, *rest: emit(v, Words(v.emitter, control, thread), *rest)

    return Phases(
        embed=defined("embed", _embed, 0),
        norm=defined("norm", _norm, 5),
        final_norm=defined("final_norm", _final_norm, 2),
        linear=defined("linear", _linear, 7),
        rotate=defined("rotate", _rotate, 2),
        attend=defined("attend", _attend, 2),
        keep=module.define("phase_keep", of_vectors(_keep), 2),
        gate_up=defined("gate_up", _gate_up, 4),
        add=module.define("phase_add", of_vectors(_add), 4),
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


def _norm(words: Words, kernels: Kernels, *arguments: Int) -> None:
    x, tokens, added, weight, readers = arguments
    with words.shared_work(tokens) as token:
        offset = token * words[Word.HIDDEN] * F32_BYTES
        onto, normed = added.equals(0).choose(0, added + offset), words[Word.NORMED] + offset
        kernels.add_norm(x + offset, onto, weight, normed, words[Word.HIDDEN], words.address(Word.NORM_EPS))
        _write_digits_for(readers, kernels, normed, words[Word.HIDDEN])


def _final_norm(words: Words, kernels: Kernels, x: Int, are_at_places: Int) -> None:
    row_bytes = words[Word.HIDDEN] * F32_BYTES
    with words.shared_work(words[Word.HEAD_TOKENS]) as number:
        row = are_at_places.equals(1).choose(words.head_place(number), number)
        normed, eps = words[Word.NORMED] + number * row_bytes, words.address(Word.NORM_EPS)
        kernels.add_norm(x + row * row_bytes, 0, words[Word.FINAL_NORM], normed, words[Word.HIDDEN], eps)
        _write_digits_for(words[Word.HEAD_TASKS], kernels, normed, words[Word.HIDDEN])


def _write_digits_for(tasks: Int, kernels: Kernels, x: Int, columns: Int) -> None:
    """In the place of fp32 numbers, if that is what the tasks read."""
    k = tasks.emitter
    if kernels.write_digits is not None:
        with k.when(k.load_int(tasks + WORD_BYTES * TaskWord.TAKES_DIGITS).differs(0)):
            kernels.write_digits(x, columns)


def _keep(v: Vectors, words: Words) -> None:
    with words.shared_work(words[Word.HEAD_TOKENS]) as number:
        for source, target, count in (
            (Word.X, Word.KEPT, words[Word.HIDDEN]),
            (Word.ATTENDED, Word.QUERIES, words.query_size),
        ):
            row_bytes = count * F32_BYTES
            from_row = words[source] + words.head_place(number) * row_bytes
            with v.emitter.loop(0, row_bytes, v.vector_bytes) as offset:
                v.store(words[target] + number * row_bytes + offset, v.load(from_row + offset))


def _linear(words: Words, kernels: Kernels, *arguments: Int) -> None:
    tokens, tasks, count, x, columns, y, outputs = arguments
    k, scratch = words.emitter, words.scratch
    stride = outputs * F32_BYTES
    with words.shared_work(count) as number:
        task = tasks + number * _TASK_BYTES
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
            kernels.rotate_query(source, query_norm, eps, cosines, sines, head_dim, scale, target, scratch)
        key = qkv + (words[Word.HEADS] + head) * head_bytes
        value = key + kv_heads * head_bytes
        cell = k.load_int(words[Word.CELLS] + token * WORD_BYTES)
        place = kv + ((cell // words[Word.PAGE_SIZE]) * kv_heads + head) * words.head_page_bytes
        place += cell % words[Word.PAGE_SIZE] * words.kv_row_bytes
        kernels.rotate_key(key, key_norm, eps, cosines, sines, head_dim, one, place, scratch)
        kernels.copy_value(value, head_dim, place + words[Word.PAGE_SIZE] * words.kv_row_bytes)


def _attend(words: Words, kernels: Kernels, kv: Int, readers: Int) -> None:
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
        kernels.attend(queries, count, group, head_dim, start, table, *page, target, stride, scratch)
        with k.loop(0, count) as token:
            _write_digits_for(readers, kernels, target + token * stride, group * head_dim)


def _gate_up(words: Words, kernels: Kernels, *arguments: Int) -> None:
    tokens, tasks, pairs, readers = arguments
    k, columns, scratch = words.emitter, words[Word.HIDDEN], words.scratch
    gate = scratch + words[Word.GATE_OFFSET]
    up = gate + tokens * _GATE_STRIDE
    with words.shared_work(pairs) as number:
        gate_task = tasks + number * (2 * _TASK_BYTES)
        rows, output = (k.load_int(gate_task + WORD_BYTES * name) for name in (TaskWord.ROWS, TaskWord.OUTPUT))
        for task, target in ((gate_task, gate), (gate_task + _TASK_BYTES, up)):
            kernels.task(task, words[Word.NORMED], columns, target, _GATE_STRIDE, tokens, scratch)
            _add_bias(words, kernels, task, target, k.integer(_GATE_STRIDE), tokens)
        with k.loop(0, tokens) as token:
            activated = words[Word.ACTIVATED] + (token * words[Word.INTERMEDIATE] + output) * F32_BYTES
            kernels.gated(gate + token * _GATE_STRIDE, up + token * _GATE_STRIDE, activated, rows)
            _write_digits_for(readers, kernels, activated, rows)


def _add(v: Vectors, words: Words, x: Int, tokens: Int) -> None:
    with words.shared_work(tokens) as token:
        row_bytes = words[Word.HIDDEN] * F32_BYTES
        with v.emitter.loop(token * row_bytes, (token + 1) * row_bytes, v.vector_bytes) as offset:
            v.store(x + offset, v.load(x + offset) + v.load(words[Word.ADDED] + offset))
