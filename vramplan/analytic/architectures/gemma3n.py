"""Gemma 3n (text): four copies of the residual stream (AltUp), a low-rank branch (LAuReL), inputs for each layer.

Mirrors transformers 5.23, modeling_gemma3n.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures import gemma
from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.gemma4 import checked, final_norm, norm, own_input, with_shared_keys
from vramplan.analytic.architectures.llama import patterned, window_or
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import heads_first_grads, rotate
from vramplan.errors import SpecError
from vramplan.inputs.model_spec import Config

BEFORE_STREAMS = 2
"""Tensors that Gemma3nTextModel.forward holds before it copies the embeddings."""


def streams_of(c: Config) -> int:
    """Copies of the residual stream."""
    return c.count("altup_num_inputs", 4)


# -- before and behind the layers --------------------------------------------------------------------------------------


def embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embeddings; beside them a second table and a projection of the first, (B, S, layers, width) both."""
    x = gemma.embed(net, c, ids)
    layers, width = c.count("num_hidden_layers"), c.count("hidden_size_per_layer_input", 256)
    shape = (*ids.shape, layers, width)
    within = net.tape.empty(ids.shape, "int64", "ids of the table")
    rows = c.count("vocab_size_per_layer_input", 262_144)
    own = net.embedding("model.embed_tokens_per_layer", within, rows, layers * width, scaled=True).view(*shape)
    del within
    if net.mixes_in is not None:
        net.multimodal_locals.append(own)
        x = net.mixes_in(ids, x)
    projected = ops.scale_in_place(net.linear("model.per_layer_model_projection", x, layers * width))
    projected = norm(net, "model.per_layer_projection_norm", projected.view(*shape))
    net.per_layer = ops.scale(ops.add(projected, own, "inputs of all layers"), "scaled inputs of all layers")
    net.embedding_locals += [x, net.per_layer]
    return x


def magnitude(x: Tensor) -> Tensor:
    """``torch.mean(x**2, dim=-1, keepdim=True)``."""
    return ops.mean(ops.square(x))


def as_long_as(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """A stream with the magnitude `target`, and its own."""
    own = ops.sqrt(ops.clamp(magnitude(x), bounds=1))
    return ops.divide(ops.mul(x, target, "scaled stream"), own, "stream"), own


def into_streams(net: Modules, c: Config, x: Tensor) -> Tensor:
    """The embeddings, and projections of them with the same magnitude: (streams, B, S, W)."""
    target = ops.root(magnitude(x))
    streams, projected, own = [x], None, None
    for number in range(streams_of(c) - 1):
        projected = ops.to(net.linear(f"model.altup_projections.{number}", x, x.shape[-1]), x.dtype)
        net.tape.module = "altup_projections"
        stream, own = as_long_as(projected, target)
        streams.append(stream)
        del stream
    held = [one for one in (projected, own) if one is not None]
    net.embedding_locals += [target, *streams, *held]
    return ops.stack(streams)


def out_of_streams(net: Modules, c: Config, x: Tensor) -> Tensor:
    """The mean of the first stream and of projections of the others."""
    dtype = net.embedded_dtype
    net.tape.module = "altup_unembed_projections"
    target = ops.root(magnitude(first(x)))
    del net.embedding_locals[BEFORE_STREAMS:]
    streams, projected, own = [first(x)], None, None
    for number in range(streams_of(c) - 1):
        one = net.linear(f"model.altup_unembed_projections.{number}", first(x), x.shape[-1])
        projected = ops.to(one, dtype)
        del one
        net.tape.module = "altup_unembed_projections"
        stream, own = as_long_as(projected, target)
        streams.append(stream)
        del stream
    net.embedding_locals += [one for one in (target, projected, own) if one is not None]
    net.embedding_locals += streams
    x = ops.stack(streams)
    return ops.mean(x, 0)


def first(x: Tensor) -> Tensor:
    """``x[0]``, or another one."""
    return ops.sliced(x, x.shape[1:])


# -- AltUp and LAuReL --------------------------------------------------------------------------------------------------


def modalities_of(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Gemma3nTextAltUp.compute_router_modalities."""
    inputs = ops.scale(norm(net, "altup.router_norm", x), "scaled input of the router")
    routed = net.linear("altup.modality_router", inputs, streams_of(c))
    return ops.to(ops.tanh(ops.to(routed, "fp32")), x.dtype)


def predict(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Each stream plus a mixture of all, by a matrix for each token."""
    modalities = modalities_of(net, c, first(x))
    streams, batch, length, width = x.shape
    coefs = net.linear("altup.prediction_coefs", modalities, streams**2).view(batch, length, streams, streams)
    net.tape.module = "altup"
    mixed = ops.matmul(x, coefs, 2 * x.num_elements * streams, (batch, length, width, streams), "mixed streams")
    mixed = ops.add_to_view(mixed, x)
    return ops.to(ops.copy(mixed, "predictions"), x.dtype, "predictions")


def correct(net: Modules, c: Config, predictions: Tensor, activated: Tensor) -> Tensor:
    """Each prediction plus a share of what the layer changed."""
    modalities = modalities_of(net, c, activated)
    streams = streams_of(c)
    net.tape.module = "altup"
    innovation = ops.subtract(activated, first(predictions), "innovation")
    innovation = ops.repeat(innovation, predictions.shape)
    if net.tape.training and c.get("altup_coef_clip", 120.0) is not None:
        coefs = clipped(net, modalities, streams)
    else:
        coefs = net.linear("altup.correction_coefs", modalities, streams)
    coefs = ops.shift(coefs, "shares of the streams").view(*modalities.shape[:-1], streams)
    by_stream = coefs.view(streams, *modalities.shape[:-1], 1)
    corrected = ops.mul(innovation, by_stream, "corrected streams")
    corrected = ops.add_in_place(corrected, predictions)
    return ops.to(corrected, activated.dtype, "corrected streams")


def clipped(net: Modules, x: Tensor, streams: int) -> Tensor:
    """``F.linear(x, correction_coefs.weight.clamp(...))``, which passes an adapter by."""
    name = "altup.correction_coefs"
    weight = net.parameter(f"{name}.weight", streams, streams)
    if net.is_target(name):
        net.adapter(name, weight)
    net.tape.module = name
    return ops.linear(x, ops.clamp(weight), None)


def laurel(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Gemma3nTextLaurelBlock."""
    low = net.linear("laurel.linear_left", x, c.count("laurel_rank", 64))
    low = net.linear("laurel.linear_right", low, x.shape[-1])
    normed = norm(net, "laurel.post_laurel_norm", low)
    net.tape.module = "laurel"
    return ops.add(x, normed, "low-rank branch")


# -- attention and feed-forward ----------------------------------------------------------------------------------------


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Norms on the heads of q, k and v; keys and values of its own, or those of an earlier layer."""
    heads, bias = checked(heads_of(c)), c.flag("attention_bias", False)
    batch, length, width = x.shape
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    q_first, kv_first = heads_first_grads(q, heads.key, ctx, kind)
    q = norm(net, "self_attn.q_norm", ops.heads_first(q) if q_first else q)
    net.tape.module = "self_attn"
    q = rotate(q, cos, sin)
    if kind.shares == "reuse":
        k, v = ctx.shared[kind.sliding]
    else:
        shape = (batch, length, heads.key, heads.dim)
        k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(*shape)
        k = norm(net, "self_attn.k_norm", ops.heads_first(k) if kv_first else k)
        net.tape.module = "self_attn"
        k = rotate(k, cos, sin)
        v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(*shape)
        v = norm(net, "self_attn.v_norm", ops.heads_first(v) if kv_first else v, scaled=False)
        k, v = update_cache(k, v, ctx, kind)
    if kind.shares == "store":
        ctx.shared[kind.sliding] = k, v
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.o_proj", out, width, bias), *weights


def mlp(net: Modules, c: Config, x: Tensor, sparse: bool) -> Tensor:
    """A gated feed-forward, all of whose factors are locals; a `sparse` gate is cut off at a quantile."""
    width = inner_width(c)
    gate = net.linear("mlp.gate_proj", x, width)
    if sparse:
        gate = above_quantile(net, gate)
    activated = activation(gemma.act(c))(gate)
    up = net.linear("mlp.up_proj", x, width)
    return net.linear("mlp.down_proj", ops.mul(activated, up), x.shape[-1])


def above_quantile(net: Modules, x: Tensor) -> Tensor:
    """``relu(x - (mean + deviation * number))``."""
    net.tape.module = "mlp"
    mean = ops.mean(x)
    deviation = ops.deviation(x)
    cutoff = ops.add(mean, ops.scale(deviation, "scaled deviation"), "cutoff")
    return ops.relu(ops.subtract(x, cutoff, "what exceeds the cutoff"))


def inner_width(c: Config) -> int:
    """The feed-forward's width, which must be the same in all layers."""
    width = c.get("intermediate_size", 16_384)
    if isinstance(width, (list, tuple)):
        if len(set(width)) != 1:
            raise SpecError("intermediate_size: layers of different widths are not modelled")
        width = width[0]
    return int(width)


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, own: Tensor) -> Tensor:
    """Gemma3nTextDecoderLayer.forward, whose results are all locals to its end."""
    predictions = predict(net, c, x)
    active = first(predictions)
    normed = norm(net, "input_layernorm", active)
    laureled = laurel(net, c, normed)
    attn, *weights = attention(net, c, normed, ctx, kind)
    attn = norm(net, "post_attention_layernorm", attn)
    gated = ops.add(active, attn, "residual stream")
    both = ops.scale(ops.add(gated, laureled, "residual stream"), "residual stream")
    attn_norm = norm(net, "pre_feedforward_layernorm", both)
    ffw = mlp(net, c, attn_norm, kind.sparse)
    ffw_norm = norm(net, "post_feedforward_layernorm", ffw)
    activated = ops.add(both, ffw_norm, "residual stream")
    corrected = correct(net, c, predictions, activated)
    prediction = ops.copy(first(corrected), "first stream")
    if c.flag("altup_correct_scale", True):
        prediction = scaled(net, prediction)
    prediction = net.linear("per_layer_input_gate", prediction, own.shape[-1])
    prediction = activation(gemma.act(c))(prediction)
    prediction = ops.mul(prediction, own, "gated input of the layer")
    prediction = net.linear("per_layer_projection", prediction, x.shape[-1])
    prediction = norm(net, "post_per_layer_input_norm", prediction)
    return ops.add_to_rest(corrected, prediction)


def scaled(net: Modules, x: Tensor) -> Tensor:
    """``(x.type_as(scale) * scale).type_as(x)``."""
    net.tape.module = "altup"
    weight = net.parameter("altup.correct_output_scale", x.shape[-1])
    return ops.to(ops.mul(ops.to(x, weight.dtype), weight, "scaled stream"), x.dtype)


def kinds(c: Config) -> list[LayerKind]:
    """Every fifth layer is full; the first ten are sparse; the last fifteen share keys and values."""
    layers = c.count("num_hidden_layers", 35)
    sparsity = c.get("activation_sparsity_pattern")
    if sparsity is None:
        sparsity = [0.95 if number < 10 < layers else 0.0 for number in range(layers)]
    if not isinstance(sparsity, (list, tuple)) or len(sparsity) != layers:
        raise SpecError(f"activation_sparsity_pattern: expected a list for {layers} layers")
    plain = [kind._replace(sparse=share > 0) for kind, share in zip(patterned(c, 5), sparsity, strict=True)]
    return with_shared_keys(plain, c.count("num_kv_shared_layers", 15) if c.get("num_kv_shared_layers", 15) else 0)


ARCHITECTURES = {
    "gemma3n_text": Architecture(
        decoder=Decoder(
            layer,
            embed=embed,
            enter=into_streams,
            leave=out_of_streams,
            norm=final_norm,
            beside=own_input,
            after_head=gemma.cap,
            window=window_or(512),
            rotary=lambda c: Rotary(heads_of(c).dim, per_kind=True),
        ),
        tied=True,
        stacks=one_stack(kinds),
        defaults={"final_logit_softcapping": 30.0},
        loads=(
            "model.embed_tokens.weight",
            0,
            "model.norm",
            "model.embed_tokens_per_layer",
            "model.per_layer_model_projection",
            "model.per_layer_projection_norm",
            "model.altup_projections",
            "model.altup_unembed_projections",
        ),
        refuses=(("altup_active_idx", ...),),
    ),
}
