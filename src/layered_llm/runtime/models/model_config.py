"""What a decoder is: the sizes that all its layers share, and layer by layer what each computes.

Must not know: files, the names of their settings, torch, weights, families.
"""

from collections.abc import Iterable
from typing import assert_never

import attrs

from layered_llm.runtime.checkpoint.matrices import Shard
from layered_llm.runtime.device.device import DeviceError


class ModelConfigError(DeviceError):
    """The model's config.json is missing, broken, or asks for something that is not supported."""


@attrs.frozen(kw_only=True)
class Llama3Scaling:
    """Frequencies stretched by wavelength (The Llama 3 Herd of Models, 2024, and Meta's published code)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@attrs.frozen(kw_only=True)
class LinearScaling:
    """All positions divided by `factor` (Chen et al., Extending Context Window via Positional Interpolation, 2023)."""

    factor: float


@attrs.frozen(kw_only=True)
class FrequencyFactors:
    """Each frequency divided by a number of its own, as a GGUF file has them for what Llama3Scaling stretches."""

    factors: tuple[float, ...]
    """One for each pair of a head."""


RopeScaling = Llama3Scaling | LinearScaling | FrequencyFactors


@attrs.frozen(kw_only=True)
class RopeConfig:
    """Rotary position embedding over the whole head (Su et al., RoFormer, 2021)."""

    theta: float
    scaling: RopeScaling | None


@attrs.frozen
class FullAttention:
    """A token attends to all that are before it."""


@attrs.frozen
class WindowAttention:
    """A token attends to the last `window_tokens`, itself among them."""

    window_tokens: int


@attrs.frozen(kw_only=True)
class GatedSpec:
    """A gated MLP (Shazeer, GLU Variants Improve Transformer, 2020)."""

    intermediate_size: int
    has_bias: bool


@attrs.frozen(kw_only=True)
class ExpertsSpec:
    """Several gated MLPs, of which a router chooses some for each token (Shazeer et al., Outrageously Large Networks, 2017)."""

    experts: int
    experts_per_token: int
    expert: GatedSpec
    """What each of them is."""


@attrs.frozen(kw_only=True)
class LayerSpec:
    """One layer: RMS norms before attention and MLP, each of which is added to the residual stream."""

    attention: FullAttention | WindowAttention
    rope: RopeConfig
    has_qkv_bias: bool
    has_output_bias: bool
    has_head_norms: bool
    """Queries and keys are normalised head by head before they are rotated."""
    mlp: GatedSpec | ExpertsSpec


@attrs.frozen(kw_only=True)
class ModelFacts:
    """What every decoder-only transformer with grouped-query attention has, of whatever family."""

    architecture: str
    hidden_size: int
    layer_count: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary_size: int
    context_tokens: int
    norm_eps: float
    tied_head: bool

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


@attrs.frozen(kw_only=True)
class ModelConfig(ModelFacts):
    """A whole decoder, or what one rank has of it."""

    layers: tuple[LayerSpec, ...]

    @classmethod
    def of(cls, facts: ModelFacts, layers: Iterable[LayerSpec]) -> "ModelConfig":
        return cls(**attrs.asdict(facts, recurse=False), layers=tuple(layers))

    @property
    def rope(self) -> RopeConfig:
        """That of all layers: `refuse_layers` refuses others."""
        return self.layers[0].rope

    @property
    def intermediate_size(self) -> int:
        """Of the widest MLP. Raises ModelConfigError where a layer has experts."""
        return max(gated(layer.mlp).intermediate_size for layer in self.layers)

    def of_rank(self, shard: Shard) -> "ModelConfig":
        """What a rank has: heads by whole groups, and its part of the vocabulary and of each MLP.

        Raises ModelConfigError where there are no equal parts.
        """
        if shard.size == 1:
            return self
        return attrs.evolve(
            self,
            heads=_part("num_attention_heads", self.heads, shard),
            kv_heads=_part("num_key_value_heads", self.kv_heads, shard),
            vocabulary_size=_part("vocab_size", self.vocabulary_size, shard),
            layers=tuple(attrs.evolve(layer, mlp=_part_of_mlp(gated(layer.mlp), shard)) for layer in self.layers),
        )


def _part_of_mlp(mlp: GatedSpec, shard: Shard) -> GatedSpec:
    return attrs.evolve(mlp, intermediate_size=_part("intermediate_size", mlp.intermediate_size, shard))


def _part(name: str, size: int, shard: Shard) -> int:
    if size % shard.size:
        raise ModelConfigError(f"{name}={size} cannot be split evenly over {shard.size} ranks")
    return size // shard.size


def gated(mlp: GatedSpec | ExpertsSpec) -> GatedSpec:
    """The only kind of MLP that is computed. Raises ModelConfigError for another."""
    match mlp:
        case GatedSpec():
            return mlp
        case ExpertsSpec():
            raise ModelConfigError(f"layers with experts are not supported, and one has {mlp.experts}")
        case _:
            assert_never(mlp)


def refuse_layers(config: ModelConfig, context_tokens: int) -> None:
    """Raises ModelConfigError for layers that nothing computes: with experts, a window below the context, or several RoPEs."""
    for layer in config.layers:
        gated(layer.mlp)
        match layer.attention:
            case FullAttention():
                pass
            case WindowAttention(window_tokens=window):
                if window < context_tokens:
                    raise ModelConfigError(
                        f"sliding_window={window} is not supported below the context of {context_tokens} tokens; "
                        f"--max-seq-len-override {window} serves the model within its window"
                    )
            case _:
                assert_never(layer.attention)
        if layer.rope != config.rope:
            raise ModelConfigError("layers with several rotary position embeddings are not supported")
