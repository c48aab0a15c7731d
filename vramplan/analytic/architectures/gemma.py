"""Gemma 1, 2 and 3 (text): norms in fp32 with ``1 + weight``, scaled embedding, four norms a layer from 2 on."""

from __future__ import annotations

from functools import partial

from vramplan.analytic.architectures.architecture import Architecture, one_stack
from vramplan.analytic.architectures.decoder import Decoder, Rotary
from vramplan.analytic.architectures.llama import patterned, window_or
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention import attention
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.mlp import gated_mlp
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.embedding import is_embedding_gemma
from vramplan.inputs.model_spec import Config


def norm(net: Modules, name: str, x: Tensor) -> Tensor:
    """``(x_normed * (1.0 + weight.float())).type_as(x)``."""
    return net.rms_norm(name, x, offset=True)


def embed(net: Modules, c: Config, ids: Tensor) -> Tensor:
    """Embedding times the root of the width."""
    return net.embedding("model.embed_tokens", ids, c.count("vocab_size"), c.count("hidden_size"), scaled=True)


def cap(net: Modules, c: Config, logits: Tensor) -> Tensor:
    """Gemma 2 caps its logits with a tanh."""
    if c.get("final_logit_softcapping") is None:
        return logits
    logits = ops.scale(logits, "capped logits")
    logits = ops.tanh(logits)
    return ops.scale(logits, "capped logits")


def act(c: Config) -> str:
    """The activation; Gemma's tanh GELU by either of its keys."""
    name = c.text("hidden_activation", c.text("hidden_act", "gelu_pytorch_tanh"))
    return "gelu_pytorch_tanh" if name == "gelu" else name


def gemma(
    net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, second: str = "post_attention_layernorm"
) -> Tensor:
    """Gemma 1: Llama's layer with its own norm; `second` is the name of the feed-forward's."""
    bias = c.flag("attention_bias", False)
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, second, x)
    x = gated_mlp(net, c, x, act(c))
    return ops.add(residual, x, "residual stream")


VAULT = partial(gemma, second="pre_feedforward_layernorm")
"""VaultGemma: Gemma 2 without the norms behind the branches."""


def sandwich(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind, qk_norm: bool = False) -> Tensor:
    """Gemma 2 and 3: a norm before and after each branch."""
    bias = c.flag("attention_bias", False)
    residual = x
    x = norm(net, "input_layernorm", x)
    x, *weights = attention(net, c, x, ctx, kind, bias, bias, norm if qk_norm else None)
    x = norm(net, "post_attention_layernorm", x)
    x = ops.add(residual, x, "residual stream")
    residual = x
    x = norm(net, "pre_feedforward_layernorm", x)
    x = gated_mlp(net, c, x, act(c))
    x = norm(net, "post_feedforward_layernorm", x)
    return ops.add(residual, x, "residual stream")


def gemma3(net: Modules, c: Config, x: Tensor, ctx: Context, kind: LayerKind) -> Tensor:
    """Gemma 3: norms on the heads of q and k as well."""
    return sandwich(net, c, x, ctx, kind, qk_norm=True)


ARCHITECTURES = {
    "gemma": Architecture(decoder=Decoder(gemma, embed=embed, norm=norm), tied=True),
    "gemma2": Architecture(
        decoder=Decoder(sandwich, embed=embed, norm=norm, after_head=cap, window=window_or(4096)),
        tied=True,
        stacks=one_stack(lambda c: patterned(c, 2)),
        defaults={"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        attention=("eager", "flash"),  # _supports_sdpa = False: SDPA cannot cap scores
    ),
    "vaultgemma": Architecture(
        decoder=Decoder(VAULT, embed=embed, norm=norm, after_head=cap, window=window_or(4096)),
        tied=True,
        stacks=one_stack(lambda c: patterned(c, 2)),
        defaults={"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
        attention=("eager", "flash"),  # _supports_sdpa = False: SDPA cannot cap scores
    ),
    "gemma3_text": Architecture(
        decoder=Decoder(
            gemma3,
            embed=embed,
            norm=norm,
            after_head=cap,
            window=window_or(4096),
            rotary=lambda c: Rotary(heads_of(c).dim, per_kind=True),
            both_ways=lambda c: is_embedding_gemma("gemma3_text", c),
        ),
        tied=True,
        stacks=one_stack(lambda c: patterned(c, 6)),
    ),
}
