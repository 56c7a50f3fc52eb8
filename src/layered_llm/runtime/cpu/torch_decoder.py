"""A decoder that executes steps with torch alone: the reference, and what runs where the generated kernels do not.

Must not know: checkpoints, sampling, policy.
"""

from collections.abc import Callable

import attrs
import torch

from layered_llm.runtime.cpu.torch_attention import KvCache, plan_attention
from layered_llm.runtime.cpu.torch_layers import CausalLm, DecoderLayer, GatedMlp, Linear, RmsNorm, SelfAttention
from layered_llm.runtime.device.device import go_on
from layered_llm.runtime.device.step_inputs import Float32s, StepInputs
from layered_llm.runtime.models.decoder_weights import DecoderWeights, LayerWeights, LinearWeights
from layered_llm.runtime.models.model_config import ModelConfig
from layered_llm.runtime.models.rotation_table import RotationTable


@attrs.frozen(kw_only=True, eq=False)
class TorchDecoder:
    """A StepModel over a model and its cache."""

    model: CausalLm
    cache: KvCache
    page_size_tokens: int

    @torch.inference_mode()
    def hidden(self, inputs: StepInputs) -> Float32s:
        return self._hidden(inputs).numpy()

    @torch.inference_mode()
    def logits(self, hidden: Float32s) -> Float32s:
        return self.model.logits(torch.from_numpy(hidden)).numpy()

    @torch.inference_mode()
    def sampled_logits(self, inputs: StepInputs) -> Float32s:
        hidden = self._hidden(inputs).index_select(0, torch.from_numpy(inputs.logit_places))
        return self.model.logits(hidden).numpy()

    def _hidden(self, inputs: StepInputs) -> torch.Tensor:
        plan = plan_attention(inputs, page_size_tokens=self.page_size_tokens)
        return self.model.hidden(torch.from_numpy(inputs.token_ids), self.cache, plan)


def open_decoder(
    weights: DecoderWeights, *, pages: int, page_size_tokens: int, threads: int, check: Callable[[], None]
) -> TorchDecoder:
    """A decoder with an empty cache; torch computes with `threads` threads from then on. `check` is called again and again."""
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    cache = KvCache.allocate(weights.config, pages=pages, page_size_tokens=page_size_tokens)
    return TorchDecoder(model=expand_model(weights, check), cache=cache, page_size_tokens=page_size_tokens)


def expand_model(weights: DecoderWeights, check: Callable[[], None] = go_on) -> CausalLm:
    """The model with all weights as fp32, in memory of its own; `check` is called before each layer."""
    config = weights.config
    embedding = torch.from_numpy(weights.embedding.dequantized())
    head = embedding if weights.head is weights.embedding else torch.from_numpy(weights.head.dequantized())
    return CausalLm(
        embedding=embedding,
        rotations=RotationTable(config.rope, config.head_dim),
        layers=tuple(_layer(config, layer, number, check) for number, layer in enumerate(weights.layers)),
        norm=_norm(config, weights.norm),
        head=Linear.build(head, None),
    )


def _layer(config: ModelConfig, weights: LayerWeights, number: int, check: Callable[[], None]) -> DecoderLayer:
    check()
    attention = weights.attention
    return DecoderLayer(
        attention_norm=_norm(config, weights.attention_norm),
        attention=SelfAttention(
            layer=number,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            qkv=_linear(attention.qkv),
            output=_linear(attention.output),
            query_norm=None if attention.query_norm is None else _norm(config, attention.query_norm),
            key_norm=None if attention.key_norm is None else _norm(config, attention.key_norm),
        ),
        mlp_norm=_norm(config, weights.mlp_norm),
        mlp=GatedMlp(gate_up=_linear(weights.mlp.gate_up), down=_linear(weights.mlp.down)),
    )


def _linear(weights: LinearWeights) -> Linear:
    bias = None if weights.bias is None else torch.from_numpy(weights.bias)
    return Linear.build(torch.from_numpy(weights.matrix.dequantized()), bias)


def _norm(config: ModelConfig, weight: Float32s) -> RmsNorm:
    return RmsNorm(weight=torch.from_numpy(weight), eps=config.norm_eps)
