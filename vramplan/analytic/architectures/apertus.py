"""Apertus: Llama with norms on the heads of q and k, and a feed-forward without a gate whose activation trains.

Mirrors transformers 5.23, modeling_apertus.py; activations.py: XIELUActivation in Python, which runs where the package
xielu is not installed.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.decoder import Decoder, rms_norm
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.ops.recurrence import softplus
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind
from vramplan.analytic.layers.mlp import plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    bias = c.flag("attention_bias", False)
    residual = x
    x = net.rms_norm("attention_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias, rms_norm)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = net.rms_norm("feedforward_layernorm", x)
    x = feed_forward(net, c, x)
    return ops.add(residual, x, "residual stream")


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """ApertusMLP."""
    width, act = c.count("intermediate_size", 14336), c.text("hidden_act", "xielu")
    if act != "xielu":
        return plain_mlp(net, x, "mlp.up_proj", "mlp.down_proj", width, act, False)
    net.parameter("mlp.down_proj.weight", x.shape[-1], width)  # the module defines it before the activation
    inner = xielu(net, "mlp.act_fn", net.linear("mlp.up_proj", x, width))
    return net.linear("mlp.down_proj", inner, x.shape[-1])


def xielu(net: Modules, name: str, x: Tensor) -> Tensor:
    """``where(x > 0, p * x * x + beta * x, (expm1(min(x, eps)) - x) * n + beta * x)``; p and n come of weights."""
    tape = net.tape
    tape.module = name
    positive = softplus(net.parameter(f"{name}.alpha_p", 1))
    negative = ops.shift(softplus(net.parameter(f"{name}.alpha_n", 1)))
    mask = tape.empty(x.shape, "bool", "which are positive")
    above = ops.add(ops.mul(ops.mul(positive, x), x), ops.scale(x))
    return ops.where(
        mask,
        above,
        ops.add(
            ops.mul(ops.subtract(ops.expm1(ops.least(x, net.resident((1,), x.dtype))), x), negative),
            ops.scale(x),
        ),
    )


def buffers(c: Config) -> list[Input]:
    """Two numbers for each activation."""
    return [Input("act_fn", (1,), "bf16")] * (2 * c.count("num_hidden_layers"))


ARCHITECTURES = {"apertus": Architecture(decoder=Decoder(layer), buffers=buffers)}
