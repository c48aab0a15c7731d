"""Mimi, the codec of CSM: it turns a waveform into tokens without gradients; its decoder is loaded and idle.

Mirrors transformers 5.23, modeling_mimi.py. Of the encoder's transformer the products are counted, not what they make:
convolutions over the waveform make far more.
"""

from __future__ import annotations

from itertools import pairwise

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.sound import convolution
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config
from vramplan.inputs.spoken import RATIOS
from vramplan.units import ceil_div

CODEC = "codec_model"


def channels(c: Config) -> list[int]:
    """Channels behind the first convolution and behind each that shortens the waveform."""
    return [c.count("num_filters", 64) * 2**number for number in range(len(ratios(c)) + 1)]


def ratios(c: Config) -> list[int]:
    """Strides of the encoder's convolutions; the decoder's are the same from its end."""
    return list(reversed(c.get("upsampling_ratios", RATIOS)))


def encoded(net: Modules, c: Config, waveform: Tensor) -> Tensor:
    """``codec_model.encode`` of one sample (1, 1, values): (1, codebooks, frames) tokens."""
    name, wide = f"{CODEC}.encoder.encoder_seanet.layers", channels(c)
    x = convolved(net, f"{name}.0", waveform, wide[0], c.count("kernel_size", 7))
    number = 1
    for ratio, (narrow, wider) in zip(ratios(c), pairwise(wide), strict=True):
        x = residual_block(net, c, f"{name}.{number}", x, narrow)
        x = convolved(net, f"{name}.{number + 2}", elu(x), wider, 2 * ratio, ratio)
        number += 3
    width = c.count("hidden_size", 512)
    x = convolved(net, f"{name}.{number + 1}", elu(x), width, c.count("last_kernel_size", 3))
    _, _, length = x.shape
    x = ops.copy(x, "frames first").view(1, length, width)
    for layer in range(c.count("num_hidden_layers", 8)):
        transformer_layer(net, c, f"{CODEC}.encoder.encoder_transformer.layers.{layer}", x)
    x = x.view(1, width, length)
    latent = convolved(net, f"{CODEC}.encoder.downsample", x, width, 4, 2, bias=False)
    frames, codebooks = latent.shape[2], c.count("num_quantizers", 32)
    quantizers(net, c)
    return net.tape.empty((1, codebooks, frames), "int64", "tokens of the codec")


def elu(x: Tensor) -> Tensor:
    """``nn.ELU`` without a gradient."""
    return ops.shift(x, "activation")


def convolved(net: Modules, name: str, x: Tensor, wide: int, kernel: int, stride: int = 1, bias: bool = True) -> Tensor:
    """MimiConv1d: padded in front, and behind to whole strides."""
    _, narrow, length = x.shape
    net.tape.module = name
    weight = net.parameter(f"{name}.conv.weight", wide, narrow, kernel)
    shift = net.parameter(f"{name}.conv.bias", wide) if bias else None
    frames = ceil_div(length, stride)
    padded = net.tape.empty((1, narrow, (frames - 1) * stride + kernel), x.dtype, "padded waveform")
    return convolution(padded, weight, shift, (1, wide, frames), permuted=False, permuted_grad=False)


def residual_block(net: Modules, c: Config, name: str, x: Tensor, wide: int) -> Tensor:
    """Two convolutions, added to what they were given."""
    kernel, hidden = c.count("residual_kernel_size", 3), wide // c.count("compress", 2)
    y = convolved(net, f"{name}.block.1", elu(x), hidden, kernel)
    y = convolved(net, f"{name}.block.3", elu(y), wide, 1)
    return ops.add(x, y, "residual stream")


def transformer_layer(net: Modules, c: Config, name: str, x: Tensor | None) -> None:
    """A layer's weights, and its products if it is the encoder's."""
    width, inner = c.count("hidden_size", 512), c.count("intermediate_size", 2048)
    heads, dim = c.count("num_attention_heads", 8), c.count("head_dim", width // c.count("num_attention_heads", 8))
    keys = c.count("num_key_value_heads", heads) * dim
    sizes = {"q_proj": (heads * dim, width), "k_proj": (keys, width), "v_proj": (keys, width)}
    linears = {f"self_attn.{one}": size for one, size in sizes.items()}
    linears |= {"self_attn.o_proj": (width, heads * dim), "mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    for linear, (out, given) in linears.items():
        idle_linear(net, f"{name}.{linear}", out, given)
        if x is not None:
            of = x if given == width else net.tape.empty((*x.shape[:-1], given), x.dtype, "input of a product")
            ops.linear(of, net.parameter(f"{name}.{linear}.weight", out, given), None)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        net.parameter(f"{name}.{norm}.weight", width)
        net.parameter(f"{name}.{norm}.bias", width)
    for scale in ("self_attn_layer_scale", "mlp_layer_scale"):
        net.parameter(f"{name}.{scale}.scale", width)


def idle_linear(net: Modules, name: str, out: int, given: int) -> None:
    """A linear layer whose adapter, if it has one, gets no gradient."""
    weight = net.parameter(f"{name}.weight", out, given)
    if net.is_target(name):
        net.adapter(name, weight)


def quantizers(net: Modules, c: Config) -> None:
    """Projections of both quantizers; their codebooks are buffers."""
    width, inner = c.count("hidden_size", 512), c.count("vector_quantization_hidden_dimension", 256)
    for kind in ("semantic", "acoustic") if inner != width else ():
        name = f"{CODEC}.quantizer.{kind}_residual_vector_quantizer"
        net.parameter(f"{name}.input_proj.weight", inner, width, 1)
        net.parameter(f"{name}.output_proj.weight", width, inner, 1)


def decoder(net: Modules, c: Config) -> None:
    """The decoder's weights, which training leaves idle."""
    name, width, wide = f"{CODEC}.decoder", c.count("hidden_size", 512), channels(c)
    net.parameter(f"{name}.upsample.conv.weight", width, 1, 4)
    for layer in range(c.count("num_hidden_layers", 8)):
        transformer_layer(net, c, f"{name}.decoder_transformer.layers.{layer}", None)
    name = f"{name}.decoder_seanet.layers"
    both(net, f"{name}.0.conv", (wide[-1], width, c.count("kernel_size", 7)), wide[-1])
    kernel, number = c.count("residual_kernel_size", 3), 2
    for ratio, (narrow, wider) in zip(reversed(ratios(c)), reversed(list(pairwise(wide))), strict=True):
        hidden = narrow // c.count("compress", 2)
        both(net, f"{name}.{number}.conv", (wider, narrow, 2 * ratio), narrow)
        both(net, f"{name}.{number + 1}.block.1.conv", (hidden, narrow, kernel), hidden)
        both(net, f"{name}.{number + 1}.block.3.conv", (narrow, hidden, 1), narrow)
        number += 3
    both(net, f"{name}.{number}.conv", (1, wide[0], c.count("last_kernel_size", 3)), 1)


def both(net: Modules, name: str, weight: tuple[int, ...], bias: int) -> None:
    """Weight and bias."""
    net.parameter(f"{name}.weight", *weight)
    net.parameter(f"{name}.bias", bias)


def codebooks(c: Config) -> list[Input]:
    """Buffers of the quantizers: for each codebook its entries, how often each is used, and whether it is made.

    The quotient of the first two is computed once and kept (MimiEuclideanCodebook.embed).
    """
    size, width = c.count("codebook_size", 2048), c.count("codebook_dim", c.count("hidden_size", 512) // 2)
    return [
        Input(f"codebook {number} {name}", shape, dtype)
        for number in range(c.count("num_quantizers", 32))
        for name, shape, dtype in (
            ("initialized", (1,), "fp32"),
            ("cluster_usage", (size,), ""),
            ("embed_sum", (size, width), ""),
            ("embed", (size, width), ""),
        )
    ]


__all__ = ["codebooks", "decoder", "encoded"]
