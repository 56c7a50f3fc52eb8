"""A decoder that executes steps with torch alone: the reference, and what runs where the generated kernels do not.

Must not know: checkpoints, sampling, policy.
"""

from collections.abc import Callable

import attrs
import torch

from layered_llm.runtime.attention import plan_attention
from layered_llm.runtime.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from layered_llm.runtime.device import go_on
from layered_llm.runtime.kv_cache import KvCache
from layered_llm.runtime.layers import CausalLm, DecoderLayer, GatedMlp, RmsNorm, RotaryEmbedding, SelfAttention
from layered_llm.runtime.linear import Linear
from layered_llm.runtime.matrices import Float32s
from layered_llm.runtime.model_config import ModelConfig
from layered_llm.runtime.slots import SlotTable
from layered_llm.runtime.step_rows import FlatTokens, StepRows


@attrs.frozen(kw_only=True, eq=False)
class TorchDecoder:
    """A StepModel over a model and its cache."""

    model: CausalLm
    cache: KvCache
    page_size_tokens: int

    def hidden(self, slots: SlotTable, rows: StepRows, tokens: FlatTokens) -> torch.Tensor:
        plan = plan_attention(slots, rows, tokens, page_size_tokens=self.page_size_tokens)
        return self.model.hidden(torch.from_numpy(tokens.token_ids), self.cache, plan)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.logits(hidden)

    @torch.inference_mode()
    def sampled_logits(self, slots: SlotTable, rows: StepRows, tokens: FlatTokens) -> Float32s:
        hidden = self.hidden(slots, rows, tokens).index_select(0, torch.from_numpy(rows.last_tokens))
        logits: Float32s = self.logits(hidden).numpy()
        return logits


def expand_model(weights: DecoderWeights, check: Callable[[], None] = go_on) -> CausalLm:
    """The model with all weights as fp32, in memory of its own; `check` is called before each layer."""
    config = weights.config
    embedding = torch.from_numpy(weights.embedding.dequantized())
    head = embedding if weights.head is weights.embedding else torch.from_numpy(weights.head.dequantized())
    return CausalLm(
        embedding=embedding,
        rotary=RotaryEmbedding.build(config.rope, config.head_dim),
        layers=tuple(_layer(config, layer, number, check) for number, layer in enumerate(weights.layers)),
        norm=_norm(config, weights.norm),
        head=Linear.build(head, None),
    )


def _layer(config: ModelConfig, weights: LayerWeights, number: int, check: Callable[[], None]) -> DecoderLayer:
    check()
    return DecoderLayer(
        attention_norm=_norm(config, weights.attention_norm),
        attention=SelfAttention(
            layer=number,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            qkv=_linear(weights.qkv),
            output=_linear(weights.output),
            query_norm=None if weights.query_norm is None else _norm(config, weights.query_norm),
            key_norm=None if weights.key_norm is None else _norm(config, weights.key_norm),
        ),
        mlp_norm=_norm(config, weights.mlp_norm),
        mlp=GatedMlp(gate_up=_linear(weights.gate_up), down=_linear(weights.down)),
    )


def _linear(weights: LinearWeights) -> Linear:
    bias = None if weights.bias is None else torch.from_numpy(weights.bias)
    return Linear.build(torch.from_numpy(weights.matrix.dequantized()), bias)


def _norm(config: ModelConfig, weight: Float32s) -> RmsNorm:
    return RmsNorm(weight=torch.from_numpy(weight), eps=config.norm_eps)
