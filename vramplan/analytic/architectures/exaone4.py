"""EXAONE 4: norms behind both branches and on the heads of q and k; hybrid models have no positions in full layers.

Mirrors transformers 5.23, modeling_exaone4.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, rms_norm
from vramplan.analytic.architectures.llama import plain_window
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Attention, norm, add; feed-forward, norm, add."""
    residual = x
    x, *weights = attention(net, c, x, ctx, kind, norm=rms_norm)
    x = net.rms_norm("post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = gated_mlp(net, c, x, c.text("hidden_act", "silu"))
    x = net.rms_norm("post_feedforward_layernorm", x)
    return ops.add(residual, x, "residual stream")


def window(c: Config) -> int | None:
    """The sliding window; transformers takes 4096 if the key is absent, none if it is null."""
    return plain_window(c) if c.has("sliding_window") else 4096


def kinds(c: Config) -> list[LayerKind]:
    """With a window: layers that slide with positions, full ones without; else full ones with positions.

    Raises:
        SpecError: without `layer_types`, for a pattern in letters or no window: transformers stops there too.
    """
    layers, slides = c.count("num_hidden_layers"), window(c) is not None
    types = c.get("layer_types")
    if types is None:
        period = c.get("sliding_window_pattern", 4) if slides else 0
        if not isinstance(period, int) or period < 1:
            raise SpecError(f"layer_types is missing, and sliding_window_pattern = {period!r} gives none")
        types = ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)]
    return [
        LayerKind(sliding=name == "sliding_attention", rotary=not slides or name == "sliding_attention")
        for name in types
    ]


ARCHITECTURES = {"exaone4": Architecture(decoder=Decoder(layer, window=window), stacks=one_stack(kinds))}
