"""FlexOlmo: OLMo 2's attention and norms, OLMoE's experts (transformers 5.23, modeling_flex_olmo.py)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.llama import olmo_attention, olmo_norm
from vramplan.analytic.architectures.moe import ROUTED, olmoe_experts
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


def flex_olmo(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Attention, norm, add; mixture, norm, add."""
    residual = x
    x, *weights = olmo_attention(net, c, x, ctx, kind)
    x = olmo_norm(net, "post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = olmoe_experts(net, c, x, kind)
    x = olmo_norm(net, "post_feedforward_layernorm", x)
    return ops.add(residual, x, "residual stream")


ARCHITECTURES = {
    "flex_olmo": Architecture(
        decoder=Decoder(flex_olmo, norm=olmo_norm, rotary=lambda c: Rotary(heads_of(c).dim, fp32=True)),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"num_experts": 7, "num_experts_per_tok": 5},
    )
}
