"""Cuts the matrices of a model into tasks, and says in control words where everything lies.

Must not know: threads, steps, kernels.
"""

import attrs
import numpy as np
from numpy.typing import NDArray

from layered_llm.domain.errors import InvariantViolated
from layered_llm.runtime.checkpoint.panels import Matrix, PanelLayout, PanelMatrix, has_panels
from layered_llm.runtime.cpu.simd.control import TASK_ROWS, LayerWord, TaskWord
from layered_llm.runtime.cpu.simd.kernels.digits import DIGITS_COLUMNS
from layered_llm.runtime.cpu.simd.memory_blocks import address_of
from layered_llm.runtime.cpu.simd.step_kernels import FORMAT_NUMBERS
from layered_llm.runtime.device.step_inputs import Float32s
from layered_llm.runtime.models.decoder_weights import DecoderWeights, LayerWeights, LinearWeights

Int64s = NDArray[np.int64]


def tasks_of(matrix: Matrix, bias: Float32s | None = None) -> Int64s:
    """One row of `TaskWord`s for each task. The matrix and the bias must outlive them."""
    firsts, stride = np.arange(0, matrix.rows, TASK_ROWS), matrix.data.shape[1]
    tasks = np.zeros((len(firsts), len(TaskWord)), np.int64)
    tasks[:, TaskWord.FORMAT] = FORMAT_NUMBERS[matrix.format]
    tasks[:, TaskWord.WEIGHTS] = address_of(matrix.data) + firsts // _stride_rows(matrix) * stride
    tasks[:, TaskWord.STRIDE] = stride
    tasks[:, TaskWord.ROWS] = np.minimum(TASK_ROWS, matrix.rows - firsts)
    tasks[:, TaskWord.OUTPUT] = firsts
    tasks[:, TaskWord.TAKES_DIGITS] = _takes_digits(matrix)
    if bias is not None:
        tasks[:, TaskWord.BIAS] = address_of(bias) + firsts * bias.itemsize
    return tasks


def gate_up_tasks(weights: LinearWeights, *, takes_digits: bool) -> Int64s:
    """[pairs * 2, words]: a task of the gate, then the same rows of the up projection.

    Raises InvariantViolated where the gate ends within a panel or, if what reads its result may take digits, within a block.
    """
    half, step = weights.matrix.rows // 2, _stride_rows(weights.matrix)
    if half % step:
        raise InvariantViolated(f"{half} rows of a gate end within a panel of {step}")
    if takes_digits and (half % DIGITS_COLUMNS or TASK_ROWS % DIGITS_COLUMNS):
        raise InvariantViolated(f"{half} rows of a gate in tasks of {TASK_ROWS} are no whole blocks of {DIGITS_COLUMNS}")
    parts = []
    for first in (0, half):
        data = weights.matrix.data[first // step : (first + half) // step]
        bias = None if weights.bias is None else weights.bias[first : first + half]
        parts.append(tasks_of(attrs.evolve(weights.matrix, rows=half, data=data), bias))
    return np.stack(parts, axis=1).reshape(-1, len(TaskWord))


def _takes_digits(matrix: Matrix) -> bool:
    return isinstance(matrix, PanelMatrix) and matrix.layout.is_for_bytes


def _stride_rows(matrix: Matrix) -> int:
    """Rows that one row of the matrix's data holds."""
    if has_panels(matrix.format) != isinstance(matrix, PanelMatrix):
        raise InvariantViolated(f"the kernels do not read {matrix.format.label} from a {type(matrix).__name__}")
    return matrix.layout.rows if isinstance(matrix, PanelMatrix) else 1


@attrs.frozen(kw_only=True, eq=False)
class ModelTables:
    """The tables that control words point to, and the weights that the tables point to."""

    weights: DecoderWeights
    layers: Int64s
    """[layers, words of `LayerWord`]."""
    embedding: Int64s
    head: Int64s
    _tasks: tuple[Int64s, ...]
    """What the rows of `layers` point to."""

    @classmethod
    def of(cls, weights: DecoderWeights, panels: PanelLayout) -> "ModelTables":
        """Raises InvariantViolated for matrices that lie in other panels."""
        if any(isinstance(matrix, PanelMatrix) and matrix.layout != panels for matrix in weights.matrices()):
            raise InvariantViolated("a matrix does not lie in the panels that the kernels read")
        kept: list[Int64s] = []
        layers = np.zeros((len(weights.layers), len(LayerWord)), np.int64)
        for row, layer in zip(layers, weights.layers, strict=True):
            _fill_layer(row, layer, kept)
        return cls(
            weights=weights,
            layers=layers,
            embedding=tasks_of(weights.embedding),
            head=tasks_of(weights.head),
            tasks=tuple(kept),
        )


def _fill_layer(row: Int64s, layer: LayerWeights, kept: list[Int64s]) -> None:
    attention, mlp = layer.attention, layer.mlp
    norms = {
        LayerWord.ATTENTION_NORM: layer.attention_norm,
        LayerWord.MLP_NORM: layer.mlp_norm,
        LayerWord.QUERY_NORM: attention.query_norm,
        LayerWord.KEY_NORM: attention.key_norm,
    }
    for word, norm in norms.items():
        row[word] = 0 if norm is None else address_of(norm)
    linears = {
        LayerWord.QKV_TASKS: tasks_of(attention.qkv.matrix, attention.qkv.bias),
        LayerWord.OUTPUT_TASKS: tasks_of(attention.output.matrix, attention.output.bias),
        LayerWord.GATE_UP_TASKS: gate_up_tasks(mlp.gate_up, takes_digits=_takes_digits(mlp.down.matrix)),
        LayerWord.DOWN_TASKS: tasks_of(mlp.down.matrix, mlp.down.bias),
    }
    for word, tasks in linears.items():
        row[word] = address_of(tasks)
        row[word + 1] = len(tasks)
        kept.append(tasks)
    row[LayerWord.GATE_UP_PAIR_COUNT] //= 2
