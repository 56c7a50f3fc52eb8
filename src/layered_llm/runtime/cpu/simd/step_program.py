"""The program that every thread of a step runs: a decoder's layers and its head, phase by phase, with a barrier between phases.

Must not know: threads' life, tensors, what a phase computes.

Phases of a layer: norm, queries/keys/values, rotation and store, attention, output, norm, gate and up, down. In a step that
ends in logits, only the tokens that have logits go on behind the last attention: of the others nothing but keys and values is
needed.
"""

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from layered_llm.runtime.cpu.simd.control import WORD_BYTES, Command, LayerWord, Word
from layered_llm.runtime.cpu.simd.kernels.emitter import CodeModule, Emitter, Function, Int, Variable
from layered_llm.runtime.cpu.simd.kernels.vectors import VectorModule
from layered_llm.runtime.cpu.simd.phases import Phases, define_phases
from layered_llm.runtime.cpu.simd.step_kernels import Needs, define_kernels, large_kernels
from layered_llm.runtime.cpu.simd.step_words import Words
from layered_llm.runtime.cpu.simd.synchronization import emit_barrier, word

_LAYER_BYTES: Final = WORD_BYTES * len(LayerWord)


def program_pieces(needs: Needs) -> Mapping[str, Callable[[VectorModule], None]]:
    """By name, what defines each module of a program; all of them are linked. A name says what a piece is generated for, so
    that programs for other models share those that they need too.
    """
    labels = "_".join(each.label for each in needs.ordered_formats)
    steps = {f"steps_{labels}_kv{needs.kv_number_bytes}": lambda module: define_steps(module, needs)}
    return {**large_kernels(needs), **steps}


def define_steps(module: VectorModule, needs: Needs) -> None:
    """Exports `lead(control)`, which carries out the command in the control words, and `follow(control, thread)`, which takes
    part in commands until it is told to stop.
    """
    code, phases = module.code, define_phases(module, define_kernels(module, needs))
    layers, head = _define_layers(code, phases), _define_head(code, phases)

    def carry_out(k: Emitter, control: Int, thread: Int) -> None:
        tokens, kept, x = (word(k, control, name) for name in (Word.TOKENS, Word.HEAD_TOKENS, Word.X))
        leaves = kept < tokens

        def step() -> None:
            layers(control, thread, kept)
            emit_barrier(code, k, control, thread)
            head(control, thread, leaves.choose(word(k, control, Word.KEPT), x), leaves.choose(0, 1))

        cases = [
            (Command.LAYERS, lambda: layers(control, thread, tokens)),
            (Command.HEAD, lambda: head(control, thread, x, 1)),
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


@attrs.frozen(eq=False)
class Stream:
    """What goes on through the layers: all tokens of the step, or from the last attention on those that the head is for."""

    tokens: Variable
    x: Variable
    attended: Variable

    @classmethod
    def of_all(cls, words: Words) -> "Stream":
        k = words.emitter
        return cls(*(k.variable(words[name]) for name in (Word.TOKENS, Word.X, Word.ATTENDED)))

    def leave(self, words: Words) -> None:
        """What is not kept."""
        self.tokens.set(words[Word.HEAD_TOKENS])
        self.x.set(words[Word.KEPT])
        self.attended.set(words[Word.QUERIES])


Run = Callable[..., None]
"""Emits a phase with these arguments, and the barrier behind it."""


def _define_layers(module: CodeModule, phases: Phases) -> Function:
    """All layers. Arguments: control, thread, tokens that are kept behind the last attention."""

    def emit(k: Emitter, control: Int, thread: Int, kept: Int) -> None:
        words = Words(k, control, thread)

        def run(phase: Function, *arguments: Int) -> None:
            phase(control, thread, *arguments)
            words.barrier(module)

        run(phases.embed)
        stream, added = Stream.of_all(words), k.variable(0)
        with k.loop(0, words[Word.LAYERS]) as layer:
            row = words[Word.LAYER_TABLE] + layer * _LAYER_BYTES
            kv = words[Word.KV_POOL] + layer * words[Word.KV_LAYER_BYTES]
            _emit_attention(run, words, phases, stream, row, kv, added.get())
            with k.when((layer + 1).equals(words[Word.LAYERS]) & (kept < words[Word.TOKENS])):
                run(phases.keep)
                stream.leave(words)
            _emit_mlp(run, words, phases, stream, row)
            added.set(words[Word.ADDED])
        phases.add(control, thread, stream.x.get(), stream.tokens.get())

    return module.function("layers", emit, 3)


def _emit_attention(run: Run, words: Words, phases: Phases, stream: Stream, *arguments: Int) -> None:
    """Up to what the tokens attend to. Arguments: layer row, KV address of the layer, added (0: nothing)."""
    (row, kv, added), hidden, tokens = arguments, words[Word.HIDDEN], stream.tokens.get()
    qkv_size = words.query_size + words[Word.KV_HEADS] * words[Word.HEAD_DIM] * 2
    run(phases.norm, stream.x.get(), tokens, added, *words.of_layer(row, LayerWord.ATTENTION_NORM, LayerWord.QKV_TASKS))
    tasks = words.of_layer(row, LayerWord.QKV_TASKS, LayerWord.QKV_TASK_COUNT)
    run(phases.linear, tokens, *tasks, words[Word.NORMED], hidden, words[Word.QKV], qkv_size)
    run(phases.rotate, row, kv)
    run(phases.attend, kv, *words.of_layer(row, LayerWord.OUTPUT_TASKS))


def _emit_mlp(run: Run, words: Words, phases: Phases, stream: Stream, row: Int) -> None:
    """From what the tokens attend to on."""
    hidden, tokens, added = words[Word.HIDDEN], stream.tokens.get(), words[Word.ADDED]
    tasks = words.of_layer(row, LayerWord.OUTPUT_TASKS, LayerWord.OUTPUT_TASK_COUNT)
    run(phases.linear, tokens, *tasks, stream.attended.get(), words.query_size, added, hidden)
    run(phases.norm, stream.x.get(), tokens, added, *words.of_layer(row, LayerWord.MLP_NORM, LayerWord.GATE_UP_TASKS))
    names = (LayerWord.GATE_UP_TASKS, LayerWord.GATE_UP_PAIR_COUNT, LayerWord.DOWN_TASKS)
    run(phases.gate_up, tokens, *words.of_layer(row, *names))
    tasks = words.of_layer(row, LayerWord.DOWN_TASKS, LayerWord.DOWN_TASK_COUNT)
    run(phases.linear, tokens, *tasks, words[Word.ACTIVATED], words[Word.INTERMEDIATE], added, hidden)


def _define_head(module: CodeModule, phases: Phases) -> Function:
    """Norm and head, of the tokens at `Word.HEAD_PLACES`.

    Arguments: control, thread, x, whether the tokens' rows in it are at these places (1) or one after the other (0).
    """

    def emit(k: Emitter, control: Int, thread: Int, *rows: Int) -> None:
        words = Words(k, control, thread)
        phases.final_norm(control, thread, *rows)
        words.barrier(module)
        tasks = (words[Word.HEAD_TASKS], words[Word.HEAD_TASK_COUNT])
        outputs = (words[Word.NORMED], words[Word.HIDDEN], words[Word.LOGITS], words[Word.VOCABULARY])
        phases.linear(control, thread, words[Word.HEAD_TOKENS], *tasks, *outputs)

    return module.function("head", emit, 4)
