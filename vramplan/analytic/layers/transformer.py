"""Parts that many families share: rotary embedding, attention with its mask, feed-forward layers.

Tensors are (batch B, length S, heads, head dim D). Each part mirrors transformers 5.23; modeling_llama.py unless said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels as kernels
from vramplan.analytic.layers.modules import Modules
from vramplan.errors import SpecError, UnknownNameError
from vramplan.inputs.model_spec import Config


class LayerKind(NamedTuple):
    """What sets a layer apart from its neighbours."""

    sliding: bool = False
    rotary: bool = True
    crosses: bool = False
    """Whether it attends to images and not to the text (Llama 3.2 Vision); skipped where there are none."""
    dense: bool = False
    """Whether one feed-forward takes all tokens, among layers that are mixtures of experts."""


class CrossAttentionInput(NamedTuple):
    """Images as cross-attention sees them."""

    states: Tensor
    """(tiles of the batch, keys of a tile, width)."""
    mask: Tensor
    """(batch, 1, length, keys of a sample), additive."""
    rows: Tensor
    """(batch, length, 1): 0 for tokens in front of the first image."""


@dataclass(slots=True)
class Context:
    """What all layers share in one forward."""

    attention: str
    """eager, sdpa or flash."""
    flash_fits: bool
    """Whether SDPA may choose its flash kernel on this card at all (compute capability 8.0)."""
    cos: dict[bool, Tensor] = field(default_factory=dict)
    """Cosine table by whether the layer is sliding (most models share one)."""
    sin: dict[bool, Tensor] = field(default_factory=dict)
    masks: dict[bool, Tensor | None] = field(default_factory=dict)
    """Attention mask by whether the layer is sliding; None where none is built."""
    positions: Tensor | None = None
    padded: bool = False
    attention_dropout: float = 0.0
    cache: list[Tensor] | None = None
    """Keys and values of all layers, where the model fills a cache (DynamicCache.update joins them to nothing)."""
    crossing: CrossAttentionInput | None = None
    """Images, where layers attend to them; every layer is handed them."""

    def of(self, kind: LayerKind) -> Context:
        """What a layer of `kind` is handed: a checkpointed one keeps its own mask and tables alive, not the others'."""
        own = (kind.sliding,)
        return replace(
            self,
            cos={key: one for key, one in self.cos.items() if key in own},
            sin={key: one for key, one in self.sin.items() if key in own},
            masks={key: one for key, one in self.masks.items() if key in own},
        )

    def on(self, card: int) -> Context:
        """The same on a layer's card: every layer is handed copies of its own of what lies elsewhere (accelerate)."""

        def moved(one: Tensor | None) -> Tensor | None:
            return None if one is None else ops.move(one, card)

        return replace(
            self,
            cos={key: ops.move(one, card) for key, one in self.cos.items()},
            sin={key: ops.move(one, card) for key, one in self.sin.items()},
            masks={key: moved(one) for key, one in self.masks.items()},
            positions=moved(self.positions),
        )


class Heads(NamedTuple):
    """Query heads, key/value heads, width of each."""

    query: int
    key: int
    dim: int


def heads_of(c: Config) -> Heads:
    """Heads by the names most configurations use."""
    query = c.count("num_attention_heads")
    key = c.count("num_key_value_heads", query)
    if query % key:
        raise SpecError(f"num_attention_heads = {query} is no multiple of num_key_value_heads = {key}")
    if c.get("head_dim") is None and c.count("hidden_size") % query:
        raise SpecError(f"hidden_size = {c.count('hidden_size')} is no multiple of num_attention_heads = {query}")
    return Heads(query, key, c.count("head_dim", c.count("hidden_size") // query or 1))


# -- rotary embedding ------------------------------------------------------------------------------------------------


def rotate_half(x: Tensor) -> Tensor:
    """``torch.cat((-x2, x1), dim=-1)``."""
    half = x.shape[-1] // 2
    first, second = ops.part(x, half), ops.part(x, half)
    return ops.cat(ops.neg(second), first)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``(x * cos) + (rotate_half(x) * sin)``."""
    return ops.add(ops.mul(x, cos, "x * cos"), ops.mul(rotate_half(x), sin, "rotated half * sin"), "rotated")


def rotary(q: Tensor, k: Tensor, ctx: Context, kind: LayerKind) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb``; nothing on layers without positions."""
    if not kind.rotary:
        return q, k
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    turned = rotate(q, cos, sin)
    return turned, rotate(k, cos, sin)


def partial_rotary(
    q: Tensor, k: Tensor, ctx: Context, kind: LayerKind, keeps: bool = False, one_by_one: bool = False
) -> tuple[Tensor, ...]:
    """Rotary on the first part of each head; the pieces are joined again, which makes q and k contiguous.

    `keeps`: written out in the attention's forward (phi, gptj), whose locals, returned as well, live to its end.
    `one_by_one`: q is joined before k is turned (phi3).
    """
    cos, sin = ctx.cos[kind.sliding], ctx.sin[kind.sliding]
    width, rest = cos.shape[-1], q.shape[-1] - cos.shape[-1]
    q_turn, k_turn = ops.part(q, width), ops.part(k, width)
    q_pass, k_pass = (None, None) if not rest else (ops.part(q, rest), ops.part(k, rest))
    if one_by_one:
        q_turned = joined(rotate(q_turn, cos, sin), q_pass)
        return q_turned, joined(rotate(k_turn, cos, sin), k_pass)
    q_turned = rotate(q_turn, cos, sin)
    k_turned = rotate(k_turn, cos, sin)
    q_joined = joined(q_turned, q_pass)
    if not keeps:
        del q_turned
        return q_joined, joined(k_turned, k_pass)
    return q_joined, joined(k_turned, k_pass), q_turned, k_turned, q, k


def joined(turned: Tensor, rest: Tensor | None) -> Tensor:
    """``torch.cat([turned, rest], dim=-1)``, a copy even where nothing is left over."""
    return ops.copy(turned, "concatenation") if rest is None else ops.cat(turned, rest)


# -- attention -------------------------------------------------------------------------------------------------------


class Softcap(NamedTuple):
    """What eager attention does to the scores besides scaling and masking."""

    caps: bool = False
    """Gemma 2: divide, tanh, multiply."""
    in_fp32: bool = True
    """Softmax in fp32 and cast to q's dtype in one expression; GPT-2 and GPT-J take it as it is, then cast to v's."""
    casts: bool = True
    """Whether they are cast; encoders leave them in what softmax gives, fp32 under autocast."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ctx: Context,
    kind: LayerKind = LayerKind(),
    contiguous: bool = False,
    scores: Softcap = Softcap(),
) -> tuple[Tensor, ...]:
    """The attention interface: (B, S, heads, D) in, (B, S, heads * D) out, and what else its caller keeps alive.

    `contiguous`: q and k lie head by head in memory (after a concatenation), so the flash kernel's output does too,
    and ``transpose(1, 2).contiguous()`` copies it (flash_api.cpp: ``empty_like(q)``).
    """
    batch, length, heads, dim = q.shape
    q.tape.module = "self_attn"
    if ctx.cache is not None:
        k, v = ops.copy(k, "cached keys"), cached_values(v, k.dtype)
        ctx.cache += [k, v]
    mask = ctx.masks.get(kind.sliding)
    if ctx.attention == "eager":
        cached = ctx.cache is not None
        out, weights = eager_attention(q, k, v, mask, ctx.attention_dropout, contiguous, scores, cached)
        return out.view(batch, length, heads * v.shape[-1]), weights
    if ctx.attention == "flash":
        out = flash_package(q, k, v, ctx.padded)
    else:
        out = sdpa(q, k, v, mask, ctx, contiguous)
    return (out.view(batch, length, heads * v.shape[-1]),)


def cached_values(v: Tensor, dtype: str) -> Tensor:
    """Values joined to an empty cache that was made in the keys' dtype, which a norm under autocast widens."""
    return ops.copy(v, "cached values") if v.dtype == dtype else ops.to(v, dtype, "cached values")


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ctx: Context, contiguous: bool) -> Tensor:
    """The kernel that F.scaled_dot_product_attention picks (aten sdp_utils.cpp, torch 2.13) behind sdpa_attention.py.

    Without a mask grouped heads go in as they are: flash takes them, the memory-efficient kernel does not, and then the
    math fallback runs. With a mask they are repeated first and the memory-efficient kernel runs. cuDNN's kernel, which
    newer cards may prefer, keeps what flash keeps.
    """
    groups, dtype, dim = q.shape[2] // k.shape[2], q.tape.autocast or q.dtype, q.shape[-1]
    same_width = dim == v.shape[-1]
    if mask is not None or not same_width or dim > 256:
        k, v = ops.repeat_heads(k, groups), ops.repeat_heads(v, groups)
        groups = 1
    if mask is None and ctx.flash_fits and dtype in ("bf16", "fp16") and same_width and dim <= 256:
        out = kernels.flash_attention(q, k, v)
        return ops.copy(out, "attention output made contiguous") if contiguous else out
    if groups == 1 and dim % (4 if dtype == "fp32" else 8) == 0:
        return kernels.efficient_attention(q, k, v, mask)
    return kernels.math_attention(q, k, v, mask, ctx.attention_dropout)


def flash_package(q: Tensor, k: Tensor, v: Tensor, padded: bool) -> Tensor:
    """flash_attention_2: the same kernel; padding is cut out before and put back after."""
    q, k, v = (ops.low(x) for x in (q, k, v))
    if not padded:
        return kernels.flash_attention(q, k, v)
    q, k, v = (ops.scale(x, "unpadded copy") for x in (q, k, v))
    return ops.scale(kernels.flash_attention(q, k, v), "output padded again")


def eager_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    contiguous: bool,
    options: Softcap,
    cached: bool = False,
) -> tuple[Tensor, Tensor]:
    """``eager_attention_forward``: all scores at once; `cached` keys and values lie head by head in memory."""
    batch, length, heads, dim = q.shape
    keys, groups, expanded = k.shape[1], heads // k.shape[2], heads > k.shape[2] == 1  # one head: a view, stride 0
    k, v = ops.repeat_heads(k, groups), ops.repeat_heads(v, groups)
    repeated = (groups > 1 or cached) and not expanded
    shape, flops = (batch, heads, length, keys), 2 * batch * heads * length * keys * dim
    scores = ops.matmul(
        merged(q, contiguous), merged(k, (contiguous and not expanded) or repeated), flops, shape, "attention scores"
    )
    scores = ops.scale(scores, "scaled attention scores")
    if options.caps:
        scores = ops.scale(scores, "capped attention scores")
        scores = ops.tanh(scores)
        scores = ops.scale(scores, "capped attention scores")
    if mask is not None:
        scores = ops.add(scores, mask, "masked attention scores")
    if options.in_fp32:
        weights = ops.to(kernels.softmax_fp32(scores), q.dtype, "attention probabilities")
    else:
        scores = kernels.softmax(scores)
        weights = ops.to(scores, v.dtype, "attention probabilities") if options.casts else scores
    del scores
    weights = ops.dropout(weights, dropout)
    flops, shape = flops // dim * v.shape[-1], (batch, length, heads, v.shape[-1])
    out = ops.matmul(weights, merged(v, repeated), flops, shape, "attention output")
    return ops.copy(out), weights


def eager_pieces(q: Tensor, k: Tensor, v: Tensor, pieces: kernels.Pieces) -> Tensor:
    """The same for each piece of a row (1, S, heads, D), one after another; the results are joined."""
    split = [ops.split_rows(x, pieces.lengths) for x in (q, k, v)]
    outs = [eager_attention(q, k, v, None, 0.0, False, Softcap())[0] for q, k, v in zip(*split, strict=True)]
    return ops.join_rows(outs, q.shape)


def merged(x: Tensor, contiguous: bool) -> Tensor:
    """`x` as a batched product takes it: copied where batch and heads cannot be viewed as one dimension."""
    return x if contiguous or x.shape[0] == 1 else ops.copy(x, "heads made contiguous")


def attention(
    net: Modules,
    c: Config,
    x: Tensor,
    ctx: Context,
    kind: LayerKind,
    bias: bool = False,
    out_bias: bool = False,
    norm: Callable[[Modules, str, Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Grouped-query attention with separate projections, `norm` on each head of q and k (qwen3, gemma3)."""
    heads = heads_of(c)
    batch, length, width = x.shape
    q = net.linear("self_attn.q_proj", x, heads.query * heads.dim, bias).view(batch, length, heads.query, heads.dim)
    if norm is not None:
        q = norm(net, "self_attn.q_norm", q)
    elif kind.rotary:
        q = ops.heads_first(q)
    k = net.linear("self_attn.k_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    if norm is not None:
        k = norm(net, "self_attn.k_norm", k)
    elif kind.rotary:
        k = ops.heads_first(k)
    v = net.linear("self_attn.v_proj", x, heads.key * heads.dim, bias).view(batch, length, heads.key, heads.dim)
    net.tape.module = "self_attn"
    q, k = rotary(q, k, ctx, kind)
    softcap = Softcap(caps=c.get("attn_logit_softcapping") is not None)
    out, *kept = attend(q, k, v, ctx, kind, scores=softcap)
    out = net.linear("self_attn.o_proj", out, width, out_bias)
    return out, *kept


# -- feed-forward ----------------------------------------------------------------------------------------------------


def gelu_new(x: Tensor) -> Tensor:
    """NewGELUActivation: seven Python ops, so five tensors are kept (activations.py)."""
    half = ops.scale(x, "half of x")
    bent = ops.tanh(ops.scale(ops.add(x, ops.scale(ops.cube(x), "scaled cube")), "scaled sum"))
    shifted = ops.shift(bent, "1 + tanh")
    del bent
    return ops.mul(half, shifted, "gelu output")


def quick_gelu(x: Tensor) -> Tensor:
    """QuickGELUActivation: ``input * torch.sigmoid(1.702 * input)``."""
    return ops.mul(x, ops.sigmoid(ops.scale(x, "scaled input")), "gelu output")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": ops.silu,
    "swish": ops.silu,
    "gelu": ops.gelu,
    "gelu_pytorch_tanh": ops.gelu,
    "gelu_new": gelu_new,
    "quick_gelu": quick_gelu,
    "relu": ops.relu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function transformers calls `name`.

    Raises:
        UnknownNameError: where it is not modelled.
    """
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise UnknownNameError("activation function", name, ACTIVATIONS) from None


def gated_mlp(net: Modules, c: Config, x: Tensor, act: str = "silu", bias: bool = False) -> Tensor:
    """``down(act(gate(x)) * up(x))``, as wide as the configuration says."""
    return gated(net, "mlp", x, c.count("intermediate_size"), act, bias)


def gated(
    net: Modules, name: str, x: Tensor, width: int, act: str, bias: bool = False, names: Sequence[str] = ()
) -> Tensor:
    """``down(act(gate(x)) * up(x))`` of the module `name`, `width` wide; `names` where these are called otherwise."""
    first, second, third = names or ("gate_proj", "up_proj", "down_proj")
    gate = activation(act)(net.linear(f"{name}.{first}", x, width, bias))
    product = ops.mul(gate, net.linear(f"{name}.{second}", x, width, bias))
    del gate
    return net.linear(f"{name}.{third}", product, x.shape[-1], bias)


def fused_gated_mlp(net: Modules, c: Config, x: Tensor) -> Tensor:
    """``gate, up = gate_up(x).chunk(2); down(up * act(gate))`` (phi3, glm)."""
    width = c.count("intermediate_size")
    both = net.linear("mlp.gate_up_proj", x, 2 * width)
    gate, up = ops.split(both, width, width)
    product = ops.mul(up, activation(c.text("hidden_act", "silu"))(gate))
    return net.linear("mlp.down_proj", product, x.shape[-1])


def plain_mlp(
    net: Modules, x: Tensor, first: str, second: str, width: int, act: str, bias: bool = True, cached: bool = True
) -> Tensor:
    """``second(act(first(x)))``."""
    out = x.shape[-1]
    inner = net.linear(first, x, width, bias, cached)  # `x` lives as the module's argument
    inner = activation(act)(inner)
    return net.linear(second, inner, out, bias, cached)
