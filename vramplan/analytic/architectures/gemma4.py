"""Gemma 4 (text): wide heads in full layers, shared keys and values, an input of its own for each layer, experts.

Mirrors transformers 5.23, modeling_gemma4.py.
"""

from __future__ import annotations

from vramplan.analytic.architectures import gemma
from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.llama import patterned, window_or
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels
from vramplan.analytic.layers.attention import attend, update_cache
from vramplan.analytic.layers.context import Context, Heads, LayerKind
from vramplan.analytic.layers.mlp import activation, gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed, routed
from vramplan.analytic.layers.rope import heads_first_grads, rotate
from vramplan.errors import SpecError
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, x: Tensor, scaled: bool = True) -> Tensor:
    """Gemma4RMSNorm: in fp32, with ``pow(mean, -0.5)``, times ``weight.float()`` if it is `scaled`."""
    net.tape.module = name
    weight = net.parameter(f"{name}.weight", x.shape[-1]) if scaled else None
    dtype, argument = x.dtype, x  # held until the function returns: the module's argument
    x = ops.to(argument, "fp32")
    x = ops.mul(x, ops.root(ops.shift(ops.mean(ops.square(x)))), "normalised")
    if weight is not None:
        x = ops.mul(x, ops.to(weight, "fp32"), "output in fp32")
    return ops.to(x, dtype, "output")


def final_norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """The norm behind the last layer."""
    return norm(net, name, x)


# -- an input for each layer -------------------------------------------------------------------------------------------


def per_layer_width(c: Config) -> int:
    """Width of each layer's own input; 0 if there is none."""
    return c.count("hidden_size_per_layer_input", 256) if c.get("hidden_size_per_layer_input", 256) else 0


def embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embeddings; beside them those of a second table, (B, S, layers, width)."""
    if net.is_within:
        ids = without_marks(net, ids)
    x, width = gemma.embed(net, c, ids), per_layer_width(c)
    if not width:
        return x
    if net.is_within:  # a local of Gemma4Model.forward, to the end
        net.multimodal_locals.append(net.tape.empty(x.shape, x.dtype, "embeddings without images"))
    layers = c.count("num_hidden_layers")
    rows = c.count("vocab_size_per_layer_input", 262_144)
    own = net.embedding("model.embed_tokens_per_layer", ids, rows, layers * width, scaled=True)
    net.per_layer = own.view(*ids.shape, layers, width)
    if net.is_within:
        net.multimodal_locals.append(net.per_layer)
    return x


def with_projection(net: Modules, c: Config, x: Tensor) -> Tensor:
    """project_per_layer_inputs: the first layer's input, projected, goes into the inputs of all layers."""
    own = net.per_layer
    if own is None:
        return x
    layers, width = own.shape[2:]
    projected = ops.scale(net.linear("model.per_layer_model_projection", x, layers * width), "scaled projection")
    projected = norm(net, "model.per_layer_projection_norm", projected.view(*own.shape))
    net.per_layer = ops.scale(ops.add(projected, own, "inputs of all layers"), "scaled inputs of all layers")
    net.embedding_locals.append(net.per_layer)
    return x


def without_marks(net: Modules, ids: Tensor) -> Tensor:
    """Gemma4Model.forward: ids in which images and sound are padding; masks of where they are."""
    masks = [net.tape.empty(ids.shape, "bool", "where images and sound are") for _ in range(5)]
    del masks[3]  # the first union
    copied = net.tape.empty(ids.shape, "int64", "ids")
    replaced = net.tape.empty(ids.shape, "int64", "ids without images")
    net.multimodal_locals += [*masks, replaced]
    del copied
    return replaced


def own_input(net: Modules, c: Config) -> tuple[Tensor, ...]:
    """``per_layer_inputs[:, :, i, :]``."""
    whole = net.per_layer
    return () if whole is None else (ops.sliced(whole, (*whole.shape[:2], whole.shape[3])),)


def with_own_input(net: Modules, c: Config, x: Tensor, own: Tensor) -> Tensor:
    """A gate times the layer's own input, projected back, normed and added."""
    residual = x
    x = net.linear("per_layer_input_gate", x, own.shape[-1])
    x = activation(gemma.act(c))(x)
    x = ops.mul(x, own, "gated input of the layer")
    x = net.linear("per_layer_projection", x, residual.shape[-1])
    x = norm(net, "post_per_layer_input_norm", x)
    return ops.add(residual, x, "residual stream")


# -- attention ---------------------------------------------------------------------------------------------------------


def heads_in(c: Config, kind: LayerKind) -> Heads:
    """Heads of a layer: full ones are wider, and may have fewer keys."""
    query, key = c.count("num_attention_heads", 8), c.count("num_key_value_heads", 4)
    if kind.sliding:
        return checked(Heads(query, key, c.count("head_dim", 256)))
    if c.flag("attention_k_eq_v", False):
        key = c.count("num_global_key_value_heads", key)
    return checked(Heads(query, key, c.count("global_head_dim", 512)))


def checked(heads: Heads) -> Heads:
    """`heads`, if they divide."""
    if heads.query % heads.key:
        raise SpecError(f"{heads.query} heads of queries are not a multiple of {heads.key} of keys")
    return heads


def attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Norms on the heads of q, k and v; keys and values of its own, or those of an earlier layer."""
    heads, bias = heads_in(c, kind), c.flag("attention_bias", False)
    batch, length, width = x.shape
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    q_first, kv_first = heads_first_grads(q, heads.key, ctx, kind)
    if q_first:
        q = ops.heads_first(q)
    q = norm(net, "self_attn.q_norm", q)
    net.tape.module = "self_attn"
    q = rotate(q, cos, sin)
    if kind.shares == "reuse":
        k, v = ctx.shared[kind.sliding]
    else:
        shape = (batch, length, heads.key, heads.dim)
        k = v = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(*shape)
        if kind.sliding or not c.flag("attention_k_eq_v", False):
            v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(*shape)
        if kv_first:
            k, v = ops.heads_first(k), ops.heads_first(v)
        k = norm(net, "self_attn.k_norm", k)
        net.tape.module = "self_attn"
        k = rotate(k, cos, sin)
        v = norm(net, "self_attn.v_norm", v, scaled=False)
        k, v = update_cache(k, v, ctx, kind)
    if kind.shares == "store":
        ctx.shared[kind.sliding] = k, v
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.o_proj", out, width, bias), *weights


# -- layers ------------------------------------------------------------------------------------------------------------


def layer(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, *own: Tensor) -> Tensor:
    """Norms around both branches, the layer's own input, and a number that the result is multiplied by."""
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind)
    x = norm(net, "post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "pre_feedforward_layernorm", x)
    wide = 2 if kind.shares == "reuse" and c.flag("use_double_wide_mlp", False) else 1
    x = gated(net, "mlp", x, wide * c.count("intermediate_size", 9216), gemma.act(c))
    if c.flag("enable_moe_block", False):
        x = with_experts(net, c, x, residual)
    x = norm(net, "post_feedforward_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    if own:
        x = with_own_input(net, c, x, *own)
    return ops.mul_in_place(x, net.resident((1,), net.training.dtype), viewed=False)


def with_experts(net: Modules, c: Config, x: Tensor, residual: Tensor) -> Tensor:
    """The feed-forward's output, normed, and that of the experts, which take the residual stream."""
    x = norm(net, "post_feedforward_layernorm_1", x)
    rows = residual.view(residual.num_elements // residual.shape[-1], residual.shape[-1])
    sizes = Experts(c.count("num_experts"), c.count("top_k_experts"), c.count("moe_intermediate_size"), gemma.act(c))
    to = router(net, rows, sizes)
    out = routed(net, "experts", norm(net, "pre_feedforward_layernorm_2", rows), to, sizes)
    out = norm(net, "post_feedforward_layernorm_2", out.view(*residual.shape))
    return ops.add(x, out, "output")


def router(net: Modules, x: Tensor, experts: Experts) -> Routed:
    """Gemma4TextRouter: a norm without weight, a scale of the width, a softmax, a scale of each expert."""
    net.routers.add("router")
    x = norm(net, "router.norm", x, scaled=False)
    x = ops.scale(ops.mul(x, net.parameter("router.scale", x.shape[-1]), "scaled rows"), "scaled rows")
    scores = net.linear("router.proj", x, experts.number)
    net.tape.module = "router"
    shares = attention_kernels.softmax_fp32(scores)
    best, which = ops.top(shares, experts.top, "shares of a token's experts")
    best = ops.divide_in_place(best, ops.total(best))
    per_expert = ops.chosen(
        net.parameter("router.per_expert_scale", experts.number), which, which.shape, "scales of a token's experts"
    )
    return ops.mul(best, per_expert, "scaled shares"), which


def kinds(c: Config) -> list[LayerKind]:
    """Every sixth layer is full, and the last; the last layers of each kind may share keys and values."""
    plain = patterned(c, 6)
    plain[-1] = LayerKind()
    return with_shared_keys(plain, c.count("num_kv_shared_layers") if c.get("num_kv_shared_layers") else 0)


def with_shared_keys(plain: list[LayerKind], shared: int) -> list[LayerKind]:
    """Layers of which the last `shared` take the keys and values of the last one of their kind before them."""
    if not shared:
        return plain
    first = len(plain) - shared
    own = [kind.sliding for kind in plain[:first]]
    if {kind.sliding for kind in plain} != set(own):
        raise SpecError(f"num_kv_shared_layers = {shared} leaves a kind of layer without keys and values")
    stores = {first - 1 - own[::-1].index(sliding) for sliding in set(own)}
    return [
        kind._replace(shares="reuse" if number >= first else "store" if number in stores else "")
        for number, kind in enumerate(plain)
    ]


def rotary(c: Config) -> Rotary:
    """Tables as wide as the heads of each kind of layer."""
    sliding, full = (heads_in(c, LayerKind(sliding)).dim for sliding in (True, False))
    return Rotary(sliding, per_kind=True, full_dim=full)


def scalars(c: Config) -> list[Input]:
    """A number for each layer, and rotary frequencies of full layers."""
    return [Input("layer_scalar", (1,), "bf16")] * c.count("num_hidden_layers")


DECODER = Decoder(
    layer,
    embed=embed,
    norm=final_norm,
    enter=with_projection,
    beside=own_input,
    after_head=gemma.cap,
    window=window_or(512),
    rotary=rotary,
)
ARCHITECTURES = {
    "gemma4_text": Architecture(
        decoder=DECODER,
        tied=True,
        stacks=one_stack(kinds),
        buffers=scalars,
        loads=(
            "model.embed_tokens.weight",
            0,
            "model.norm",
            "model.embed_tokens_per_layer",
            "model.per_layer_model_projection",
            "model.per_layer_projection_norm",
        ),
        attention=("sdpa", "eager"),  # flash-attn takes heads of up to 256
        refuses=(("use_bidirectional_attention", "all"), ("per_layer_config", ...)),
    ),
    "gemma4_unified_text": Architecture(
        decoder=DECODER,
        tied=True,
        stacks=one_stack(kinds),
        buffers=scalars,
        loads=("model.embed_tokens", 0, "model.norm"),
        attention=("sdpa", "eager"),
        refuses=(("use_bidirectional_attention", "all"), ("per_layer_config", ...)),
        defaults={"hidden_size_per_layer_input": 0, "sliding_window": 1024},
    ),
}
