"""K-EXAONE: EXAONE 4's attention behind a norm, DeepSeek's experts (transformers 5.23, modeling_exaone_moe.py)."""

from __future__ import annotations

from vramplan.analytic.architectures import exaone4
from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, rms_norm
from vramplan.analytic.architectures.deepseek import corrections, shared_and_routed, v3_router
from vramplan.analytic.architectures.llama import plain_window
from vramplan.analytic.architectures.moe import ROUTED, layer
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_spec import Config


def exaone_moe(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward or mixture, add."""
    return layer(
        net,
        c,
        x,
        ctx,
        kind,
        lambda net, c, x, ctx, kind: attention(net, c, x, ctx, kind, norm=rms_norm),
        lambda net, c, x, kind: shared_and_routed(net, c, x, kind, v3_router),
    )


def kinds(c: Config) -> list[LayerKind]:
    """EXAONE 4's, of which the first are no mixtures unless `mlp_layer_types` says otherwise."""
    types, dense = c.get("mlp_layer_types"), c.get("first_k_dense_replace", 1)
    layers = exaone4.kinds(c)
    types = types or ["dense" if layer < dense else "sparse" for layer in range(len(layers))]
    return [kind._replace(dense=name == "dense") for kind, name in zip(layers, types, strict=True)]


ARCHITECTURES = {
    "exaone_moe": Architecture(
        decoder=Decoder(exaone_moe, window=plain_window),
        stacks=one_stack(kinds),
        buffers=corrections(kinds),
        refuses=ROUTED,
        peft_experts="qwen2_moe",
        defaults={"sliding_window": 4096, "n_group": 1, "topk_group": 1, "num_experts": 64, "num_shared_experts": 1},
    )
}
