"""The GPT line: GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, StarCoder2: LayerNorm, biases, plain feed-forward."""

from __future__ import annotations

from math import prod

from vramplan.analytic.architectures.architecture import Architecture, Shape, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary, embed_tokens, layer_norm
from vramplan.analytic.architectures.llama import every_layer_slides, plain_window
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import Softcap, attend, attention, update_cache
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import activation, plain_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.rope import partial_rotary, rotate
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

# -- GPT-2 -------------------------------------------------------------------------------------------------------------


def gpt_shape(c: Config) -> Shape:
    """GPT-2's and GPT-J's own key names; positions are a table."""
    return Shape(c.count("n_layer"), c.count("n_embd"), c.count("vocab_size"), c.get("n_positions"), hard_limit=True)


def gpt2_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Token plus learned position, then dropout."""
    width = c.count("n_embd")
    tokens = net.embedding("transformer.wte", ids, c.count("vocab_size"), width)
    where = net.tape.empty((ids.shape[0] if net.generates else 1, ids.shape[1]), "int64", "position ids")
    positions = net.embedding("transformer.wpe", where, c.count("n_positions", 1024), width)
    net.embedding_locals = [tokens, positions]
    return ops.dropout_layer(ops.add(tokens, positions, "embedding"), c.number("embd_pdrop", 0.1))


def gpt2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """q, k and v are views of one projection; softmax stays in the model's dtype."""
    width = x.shape[-1]
    residual = x
    x = net.layer_norm("ln_1", x)
    attended, *weights = gpt2_attention(net, c, x, ctx, kind)  # a local of GPT2Block.forward to its end
    x = ops.add(attended, residual, "residual stream")
    residual = x
    x = net.layer_norm("ln_2", x)
    inner = c.count("n_inner", 4 * width)
    act = c.text("activation_function", "gelu_new")
    added = ops.dropout_layer(plain_mlp(net, x, "mlp.c_fc", "mlp.c_proj", inner, act), c.number("resid_pdrop", 0.1))
    return ops.add(residual, added, "residual stream")


def gpt2_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """One fused projection with bias, cut in three."""
    batch, length, width = x.shape
    heads = c.count("n_head")
    parts = ops.split(net.linear("attn.c_attn", x, 3 * width, bias=True), width, width, width)
    q, k, v = (part.view(batch, length, heads, width // heads) for part in parts)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, scores=Softcap(in_fp32=False))
    return ops.dropout_layer(net.linear("attn.c_proj", out, width, bias=True), c.number("resid_pdrop", 0.1)), *weights


# -- GPT-J -------------------------------------------------------------------------------------------------------------


def gptj(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Attention and feed-forward side by side behind one norm; scores in fp32."""
    batch, length, width = x.shape
    heads = c.count("n_head")
    residual = x
    x = net.layer_norm("ln_1", x)
    q, k, v = (net.linear(f"attn.{name}_proj", x, width).view(batch, length, heads, width // heads) for name in "qkv")
    pieces = gptj_rotary(net, c, q, k)
    q, k = pieces[:2]
    k, v = update_cache(k, v, ctx, kind)
    out, weights = attend(ops.to(q, "fp32"), ops.to(k, "fp32"), v, ctx, kind, scores=Softcap(in_fp32=False))
    out = net.linear("attn.out_proj", out, width)
    del q, k, v, pieces
    inner = c.count("n_inner", 4 * width)
    x = plain_mlp(net, x, "mlp.fc_in", "mlp.fc_out", inner, c.text("activation_function", "gelu_new"))
    return ops.add(ops.add(out, x), residual, "residual stream"), weights


def gptj_rotary(net: Modules, c: Config, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """Every layer gathers its own tables, one pair for k and one for q; all are locals of the attention."""
    tape, length, width, rows = net.tape, q.shape[1], c.count("rotary_dim", 64), q.shape[0] if net.generates else 1
    tape.module = "attn"
    repeated = tape.empty((rows * c.count("n_positions", 2048), width), "fp32", "embed_positions repeated")
    places = tape.empty((rows, length, width), "int64", "position ids repeated")
    gathered = tape.empty((rows, length, width), "fp32", "sines and cosines")
    both = gathered if q.dtype == "fp32" else tape.empty((rows, length, width), q.dtype, "sines and cosines")
    del gathered
    turned = []
    for x in (k, q):
        part = ops.part(x, width)
        sin, cos = (tape.empty((rows, length, 1, width), q.dtype, f"rotary {name}") for name in ("sin", "cos"))
        turned.append((rotate(part, cos, sin), ops.part(x, x.shape[-1] - width)))
        del sin, cos, part
    (k_turned, k_rest), (q_turned, q_rest) = turned
    k_joined = ops.cat(k_turned, k_rest)
    return ops.cat(q_turned, q_rest), k_joined, k_turned, k_rest, q_turned, q_rest, repeated, places, both


def gptj_buffers(c: Config) -> list[Input]:
    """A table of sines and cosines in every layer."""
    table = Input("layers.* table", (c.count("n_positions", 2048), c.count("rotary_dim", 64)), "fp32")
    return [table] * len(by_layer_count(c))


def gptj_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``transformer.wte``."""
    return net.embedding("transformer.wte", ids, c.count("vocab_size"), c.count("n_embd"))


# -- GPT-NeoX ----------------------------------------------------------------------------------------------------------


def gpt_neox(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Pythia: parallel branches, each behind its own norm; v keeps the fused projection alive."""
    width = c.count("intermediate_size")
    act, bias, dropout = c.text("hidden_act", "gelu"), c.flag("attention_bias", True), c.number("hidden_dropout", 0.0)
    names = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", width, act)
    attended, *weights = neox_attention(net, c, net.layer_norm("input_layernorm", x), ctx, kind, bias)
    attended = ops.dropout_layer(attended, dropout)
    if c.flag("use_parallel_residual", True):
        mlp = ops.dropout_layer(plain_mlp(net, net.layer_norm("post_attention_layernorm", x), *names), dropout)
        return ops.add(ops.add(mlp, attended), x, "residual stream")
    attended = ops.add(attended, x, "residual stream")
    mlp = ops.dropout_layer(plain_mlp(net, net.layer_norm("post_attention_layernorm", attended), *names), dropout)
    return ops.add(mlp, attended, "residual stream")


def neox_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, bias: bool) -> tuple[Tensor, ...]:
    """One projection, laid out head by head."""
    heads = heads_of(c)
    batch, length, width = x.shape
    qkv = net.linear("attention.query_key_value", x, 3 * width, bias).view(batch, length, heads.query, 3 * heads.dim)
    q, k, v = ops.split(ops.heads_first(qkv), heads.dim, heads.dim, heads.dim)
    q, k = partial_rotary(q, k, ctx, kind)
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind, contiguous=True)
    return net.linear("attention.dense", out, width, bias), *weights


def neox_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """``gpt_neox.embed_in``."""
    return net.embedding("gpt_neox.embed_in", ids, c.count("vocab_size"), c.count("hidden_size"))


def neox_rotary(c: Config) -> Rotary:
    """Rotary over a quarter of each head."""
    return Rotary(int(heads_of(c).dim * c.number("rotary_pct", c.number("partial_rotary_factor", 0.25))))


# -- OPT ---------------------------------------------------------------------------------------------------------------


def opt_shape(c: Config) -> Shape:
    """OPT's positions are a table."""
    return Shape(
        c.count("num_hidden_layers"),
        c.count("hidden_size"),
        c.count("vocab_size"),
        c.get("max_position_embeddings"),
        hard_limit=True,
    )


def opt_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Token plus learned position (two extra rows); opt-350m widens a narrow embedding."""
    width, narrow = c.count("hidden_size"), c.count("word_embed_proj_dim", c.count("hidden_size"))
    x = net.embedding("model.decoder.embed_tokens", ids, c.count("vocab_size"), narrow)
    where = net.tape.empty(ids.shape, "int64", "position ids")
    rows = c.count("max_position_embeddings", 2048) + 2
    positions = net.embedding("model.decoder.embed_positions", where, rows, width)
    if narrow != width:
        x = net.linear("model.decoder.project_in", x, width)
    net.embedding_locals = [x, positions]
    return ops.add(x, positions, "embedding")


def opt(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """OPT: dropout on both branches; norms before them, or after (350m)."""
    before, dropout = c.flag("do_layer_norm_before", True), c.number("dropout", 0.1)
    residual = x
    if before:
        x = net.layer_norm("self_attn_layer_norm", x)
    x, *weights = opt_attention(net, c, x, ctx, kind)
    x = ops.dropout(x, dropout)
    x = ops.add(residual, x, "residual stream")
    if not before:
        x = net.layer_norm("self_attn_layer_norm", x)
    fn, bias, (*outer, width) = activation(c.text("activation_function", "relu")), c.flag("enable_bias", True), x.shape
    x = residual = x.view(prod(outer), width)  # from here on rows
    if before:
        x = net.layer_norm("final_layer_norm", x)
    x = net.linear("fc1", x, c.count("ffn_dim"), bias)  # written out in the layer: the norm's output goes here
    x = fn(x)
    x = net.linear("fc2", x, width, bias)
    x = ops.dropout(x, dropout)
    x = ops.add(residual, x, "residual stream").view(*outer, width)
    return x if before else net.layer_norm("final_layer_norm", x)


def opt_attention(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, ...]:
    """Equal heads; the query is scaled by hand."""
    heads, bias = heads_of(c), c.flag("enable_bias", True)
    batch, length, width = x.shape
    q = ops.scale(net.linear("self_attn.q_proj", x, width, bias), "scaled query")
    k = net.linear("self_attn.k_proj", x, width, bias)
    v = net.linear("self_attn.v_proj", x, width, bias)
    q, k, v = (t.view(batch, length, heads.query, heads.dim) for t in (q, k, v))
    k, v = update_cache(k, v, ctx, kind)
    out, *weights = attend(q, k, v, ctx, kind)
    return net.linear("self_attn.out_proj", out, width, bias), *weights


def opt_before_head(net: Modules, c: Config, x: Tensor) -> Tensor:
    """A projection back to a narrow embedding (350m)."""
    narrow = c.count("word_embed_proj_dim", c.count("hidden_size"))
    return x if narrow == c.count("hidden_size") else net.linear("model.decoder.project_out", x, narrow)


# -- StarCoder2 --------------------------------------------------------------------------------------------------------


def starcoder2(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """StarCoder2: grouped heads, biases, plain feed-forward."""
    bias, dropout = c.flag("use_bias", True), c.number("residual_dropout", 0.0)
    residual = x
    x = net.layer_norm("input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, ops.dropout(x, dropout), "residual stream")
    residual = x
    x = net.layer_norm("post_attention_layernorm", x)
    act = c.text("hidden_act", "gelu_pytorch_tanh")
    x = plain_mlp(net, x, "mlp.c_fc", "mlp.c_proj", c.count("intermediate_size"), act, bias)
    return ops.add(residual, ops.dropout(x, dropout), "residual stream")


def starcoder_embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embedding with dropout."""
    x = embed_tokens(net, c, ids)
    net.embedding_locals = [x]
    return ops.dropout(x, c.number("embedding_dropout", 0.0))


def by_layer_count(c: Config, key: str = "n_layer") -> list[LayerKind]:
    """Full attention everywhere, layers counted by an older key."""
    return [LayerKind()] * c.count(key, c.get("num_hidden_layers"))


ARCHITECTURES = {
    "gpt2": Architecture(
        decoder=Decoder(
            gpt2,
            embed=gpt2_embed,
            norm=layer_norm,
            norm_name="transformer.ln_f",
            rotary=lambda c: None,
            attention_dropout=("attn_pdrop", 0.1),
            attention_dropout_is_layer=True,
        ),
        tied=True,
        shape=gpt_shape,
        stacks=one_stack(by_layer_count),
    ),
    "gptj": Architecture(
        decoder=Decoder(
            gptj, embed=gptj_embed, norm=layer_norm, norm_name="transformer.ln_f", head_bias=True, rotary=lambda c: None
        ),
        shape=gpt_shape,
        stacks=one_stack(by_layer_count),
        buffers=gptj_buffers,
        attention=("eager",),
    ),
    "gpt_neox": Architecture(
        decoder=Decoder(
            gpt_neox, embed=neox_embed, norm=layer_norm, norm_name="gpt_neox.final_layer_norm", rotary=neox_rotary
        )
    ),
    "opt": Architecture(
        decoder=Decoder(
            opt,
            embed=opt_embed,
            norm=layer_norm,
            norm_name="model.decoder.final_layer_norm",
            before_head=opt_before_head,
            rotary=lambda c: None,
            positions_in_mask=False,
        ),
        tied=True,
        shape=opt_shape,
    ),
    "starcoder2": Architecture(
        decoder=Decoder(starcoder2, embed=starcoder_embed, norm=layer_norm, window=plain_window),
        tied=True,
        stacks=one_stack(every_layer_slides),
    ),
}
