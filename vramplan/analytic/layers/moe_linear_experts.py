"""Mixtures of experts before transformers 5: every expert is linear layers of its own, and they take turns.

Mirrors transformers 4.57 (modeling_<type>.py: <Type>SparseMoeBlock, <Type>MoE); 4.48 allocates the same but for an
expert's part of the mask, which was a view. That the router and the experts are linear layers is what bitsandbytes and
PEFT's all-linear go by. Tokens are taken to spread evenly.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.repeated_experts import repetitions
from vramplan.analytic.layers import attention_kernels
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed
from vramplan.errors import ConfigError
from vramplan.units import ceil_div

BY_NUMBER = ("w1", "w3", "w2")
"""What Mixtral and Phi 3.5 call gate_proj, up_proj and down_proj."""


Looped = tuple[Tensor, list[Tensor]]
"""What the experts give, and what the block's forward keeps until it is done."""


def in_turn(
    net: Modules, name: str, x: Tensor, to: Routed, experts: Experts, names: tuple[str, ...] = (), widens: bool = False
) -> Looped:
    """``for expert_idx in expert_hit``: each takes its rows and adds what it gives: (tokens, width) in and out.

    `widens`: what they give is added up in the shares' dtype, fp32 (DeepSeek V3, GLM 4.5).
    """
    tape, (tokens, width), (shares, _) = net.tape, x.shape, to
    rows = ceil_div(tokens * experts.top, experts.number)
    tape.module = name
    total = tape.empty((tokens, width), shares.dtype if widens else x.dtype, "zeros for the output")
    held = [tape.empty((tokens, experts.top, experts.number), "int64", "experts of each token, one-hot")]
    for number, copies in repetitions(experts.number):
        with tape.repeated.standing_for(copies):
            tape.module = name
            part = None if widens else tape.empty((experts.top, tokens), "int64", "an expert's part of the mask")
            where = tape.empty((rows, 2), "int64", "an expert's rows")
            del part
            share = ops.chosen(shares, where, (rows,), "shares of an expert").view(rows, 1) if widens else None
            given = ops.chosen(x, where, (rows, width), "rows of an expert", widened=not widens)
            made = gated(net, f"{name}.{number}", given, experts.width, experts.act, names=names)
            tape.module = name
            if share is None:
                made = ops.mul(made, ops.chosen(shares, where, (rows, 1), "shares of an expert", widened=True))
            else:
                made = ops.mul(made, share, "weighted output")
            if widens and made.dtype != total.dtype:
                raise ConfigError(
                    "transformers 4 stops at these experts with prepare_model_for_kbit_training under autocast: their"
                    f" outputs are fp32, the sum of them {total.dtype}; give --autocast none"
                )
            made = ops.to(made, total.dtype, "weighted output")
            total = ops.added_at(total, where, made)
            if copies > 1:
                del where, given, made, share
    return total, [*held, where, given, made]


def by_softmax(
    net: Modules, name: str, x: Tensor, experts: Experts, normalises: bool, names: tuple[str, ...] = ()
) -> Looped:
    """MixtralSparseMoeBlock, Qwen3MoeSparseMoeBlock, OlmoeSparseMoeBlock: (tokens, width) in and out.

    Shares are those of a softmax in fp32, in the tokens' dtype.
    """
    logits = net.linear(f"{name}.gate", x, experts.number)
    net.tape.module = f"{name}.gate"
    shares, which = ops.top(attention_kernels.softmax_fp32(logits), experts.top, "shares of a token's experts")
    if normalises:
        shares = ops.divide_in_place(shares, ops.total(shares))
    shares = ops.to(shares, x.dtype, "shares of a token's experts")
    out, held = in_turn(net, f"{name}.experts", x, (shares, which), experts, names)
    return out, [*held, logits, shares, which]


def in_order(net: Modules, name: str, x: Tensor, to: Routed, experts: Experts) -> Tensor:
    """DeepseekV2MoE.moe: rows are sorted by expert first, every expert takes a slice, and what they give is joined."""
    tape, (tokens, width), (shares, _) = net.tape, x.shape, to
    count = tokens * experts.top
    rows = ceil_div(count, experts.number)
    tape.module = name
    counts = [tape.empty((tokens, experts.number), "int64", "experts of each token")]
    order = tape.empty((count,), "int64", "order of the rows")
    ordered = ops.chosen(x, tape.empty((count,), "int64", "token of each row"), (count, width), "rows by expert")
    given: list[Tensor] = []
    for number, copies in repetitions(experts.number):
        with tape.repeated.standing_for(copies):
            own = ops.sliced(ordered, (rows, width))
            given.append(gated(net, f"{name}.{number}", own, experts.width, experts.act))
            del own
    tape.module = name
    out = ops.join_rows(given, (count, width))
    by_token = ops.chosen(out, order, out.shape, "rows by token")
    wide = ops.to(by_token.view(tokens, experts.top, width), shares.dtype, "rows by token")
    wide = ops.mul_in_place(wide, shares.view(tokens, experts.top, 1), viewed=by_token.dtype == shares.dtype)
    total = ops.sum_middle(wide)
    del wide
    total = ops.to(total, x.dtype, "output")
    del counts, given, ordered, out
    return total
