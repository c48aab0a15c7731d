"""DINOv3's vision transformers with a linear classifier of images (transformers 5.23, modeling_dinov3_vit.py).

transformers has the backbone alone; people put a linear layer on its class token's state, which is what is described.
"""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, alike
from vramplan.analytic.architectures.dinov2 import layer, registers
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.towers.vit import patches
from vramplan.analytic.architectures.vision_tower import given_a_gradient
from vramplan.analytic.architectures.vit import shape
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.ops.recurrence import joined
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.biased_attention import for_all
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.mlp import gated, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import rotate
from vramplan.inputs.model_inputs import Input, grid
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import num_labels


def classify(forward: ForwardPass, c: Config) -> ModelOutput:
    """The class token's last state, one layer, a cross-entropy."""
    hidden = encode(forward, c)
    chosen = ops.rows(hidden, 1).view(hidden.shape[0], hidden.shape[2])
    logits = forward.net.linear("classifier", chosen, num_labels(c, forward.job), True, head=True)
    forward.tape.module = "loss"
    return ModelOutput(losses.cross_entropy(logits, forward.inputs["labels"]), [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """DINOv3ViTModel: pixels in the model's dtype, embeddings and rotary tables live to its end."""
    net = forward.net
    net.tape.module = "embeddings"
    pixels = ops.to(forward.inputs["pixel_values"], net.training.dtype, "pixels in the model's dtype")
    embedded = embed(forward, c, pixels)
    ctx = forward.context(None, c.number("attention_dropout", 0.0))
    ctx.cos[False], ctx.sin[False] = tables(forward, c)
    x = forward.layers(0, embedded, lambda x: layer(net, c, x, ctx, attention, feed_forward))
    return net.layer_norm("norm", x)


def embed(forward: ForwardPass, c: Config, pixels: Tensor) -> Tensor:
    """The class token, registers, patches in one row; the token of masked patches is idle."""
    net, name = forward.net, "embeddings"
    x = patches(net, f"{name}.patch_embeddings", pixels, c, grid(c, forward.job), True, c.count("patch_size", 16))
    x = given_a_gradient(x, net.training.input_needs_grad)
    net.tape.module = name
    samples, count, width = x.shape
    net.parameter(f"{name}.mask_token", 1, 1, width)
    parts: list[Tensor] = [net.parameter(f"{name}.cls_token", 1, 1, width)]
    if registers(c):
        parts.append(net.parameter(f"{name}.register_tokens", 1, registers(c), width))
    return joined([*(for_all(one, samples) for one in parts), x], (samples, 1 + registers(c) + count, width))


def tables(forward: ForwardPass, c: Config) -> list[Tensor]:
    """DINOv3ViTRopePositionEmbedding: cosines and sines of every patch's row and column, (1, patches, 1, head dim)."""
    tape, (rows, columns) = forward.tape, grid(c, forward.job)
    tape.module = "rope_embeddings"
    table = 1, rows * columns, 1, c.count("hidden_size") // c.count("num_attention_heads")
    angles = tape.empty(table, "fp32", "rotary angles")
    made = [tape.empty(table, "fp32", f"rotary {name}") for name in ("cos", "sin")]
    cast = [ops.to(one, forward.net.training.dtype, "rotary table") for one in made]
    del angles
    return cast


def attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """DINOv3ViTAttention: every token to every token; eager scores stay in the model's dtype."""
    (batch, length, width), heads = x.shape, c.count("num_attention_heads")
    biases = {"q": c.flag("query_bias", True), "k": c.flag("key_bias", False), "v": c.flag("value_bias", True)}
    q, k, v = (
        net.linear(f"attention.{name}_proj", x, width, bias).view(batch, length, heads, width // heads)
        for name, bias in biases.items()
    )
    net.tape.module = "attention"
    q, k = turned(ops.heads_first(q), ops.heads_first(k), ctx)
    out, *weights = attend(q, k, v, ctx, contiguous=True, scores=Softcap(in_fp32=False, casts=False))
    return net.linear("attention.o_proj", out, width, c.flag("proj_bias", True)), *weights


def turned(q: Tensor, k: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb: patches are rotated, the tokens before them joined to them again; locals to the end."""
    cos, sin = ctx.cos[False], ctx.sin[False]
    lengths = q.shape[1] - cos.shape[1], cos.shape[1]
    (q_first, q_patches), (k_first, k_patches) = ops.split_rows(q, lengths), ops.split_rows(k, lengths)
    q_patches = rotate(q_patches, cos, sin)
    k_patches = rotate(k_patches, cos, sin)
    shape = q.shape
    q = joined([q_first, q_patches], shape)
    k = joined([k_first, k_patches], shape)
    return q, k


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """DINOv3ViTMLP, or the gated one."""
    wide, act, bias = c.count("intermediate_size"), c.text("hidden_act", "gelu"), c.flag("mlp_bias", True)
    if c.flag("use_gated_mlp", False):
        return gated(net, "mlp", x, wide, act, bias)
    return plain_mlp(net, x, "mlp.up_proj", "mlp.down_proj", wide, act, bias)


def frequencies(c: Config) -> list[Input]:
    """Rotary frequencies of rows and columns."""
    return [Input("rotary frequencies", (c.count("hidden_size") // c.count("num_attention_heads") // 4,), "fp32")]


ARCHITECTURES = {
    "dinov3_vit": Architecture(
        classify,
        stacks=lambda c: alike(c.count("num_hidden_layers")),
        shape=shape,
        buffers=frequencies,
        refuses=(("drop_path_rate", ...),),
    )
}
