"""MoE before transformers 5: every expert is separate linear layers, and the experts run one after another.

Mirrors transformers 4.57 (modeling_<type>.py: <Type>SparseMoeBlock, <Type>MoE); 4.48 allocates the same except that an
expert's part of the mask is a view. Router and experts are linear layers to bitsandbytes and to PEFT's all-linear.
Assumes that tokens are spread evenly over the experts.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.repeated_experts import repetitions
from vramplan.analytic.layers import attention_kernels
from vramplan.analytic.layers.mlp import gated
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.moe import Experts, Routed
from vramplan.errors import ConfigError, setting
from vramplan.units import ceil_div

BY_NUMBER = ("w1", "w3", "w2")
"""Mixtral's and Phi 3.5's names of gate_proj, up_proj and down_proj."""


ExpertsOutput = tuple[Tensor, list[Tensor]]
"""Output of the experts, and the locals held until the block's forward returns."""


def in_turn(
    net: Modules, name: str, x: Tensor, to: Routed, experts: Experts, names: tuple[str, ...] = (), widens: bool = False
) -> ExpertsOutput:
    """``for expert_idx in expert_hit``: each expert gathers its rows and adds its output: (tokens, width) in and out.

    `widens`: outputs are summed in the shares' dtype, fp32 (DeepSeek V3, GLM 4.5).
    """
    tape, (tokens, width), (shares, _) = net.tape, x.shape, to
    rows = ceil_div(tokens * experts.top, experts.number)
    tape.module = name
    total = tape.empty((tokens, width), shares.dtype if widens else x.dtype, "zeros for the output")
    block_locals = [tape.empty((tokens, experts.top, experts.number), "int64", "experts of each token, one-hot")]
    for number, copies in repetitions(experts.number):
        with tape.repeated.standing_for(copies):
            tape.module = name
            part = None if widens else tape.empty((experts.top, tokens), "int64", "an expert's part of the mask")
            where = tape.empty((rows, 2), "int64", "an expert's rows")
            del part
            share = ops.chosen(shares, where, (rows,), "shares of an expert").view(rows, 1) if widens else None
            expert_rows = ops.chosen(x, where, (rows, width), "rows of an expert", widened=not widens)
            output = gated(net, f"{name}.{number}", expert_rows, experts.width, experts.act, names=names)
            tape.module = name
            if share is None:
                output = ops.mul(output, ops.chosen(shares, where, (rows, 1), "shares of an expert", widened=True))
            else:
                output = ops.mul(output, share, "weighted output")
            if widens and output.dtype != total.dtype:
                raise ConfigError(
                    "transformers 4 stops at these experts with prepare_model_for_kbit_training under autocast: their"
                    f" outputs are fp32, their sum {total.dtype}; give {setting('autocast', 'none')}"
                )
            output = ops.to(output, total.dtype, "weighted output")
            total = ops.added_at(total, where, output)
            if copies > 1:
                del where, expert_rows, output, share
    return total, [*block_locals, where, expert_rows, output]


def by_softmax(
    net: Modules, name: str, x: Tensor, experts: Experts, normalises: bool, names: tuple[str, ...] = ()
) -> ExpertsOutput:
    """MixtralSparseMoeBlock, Qwen3MoeSparseMoeBlock, OlmoeSparseMoeBlock: (tokens, width) in and out.

    Shares are a softmax in fp32, cast to the tokens' dtype.
    """
    logits = net.linear(f"{name}.gate", x, experts.number)
    net.tape.module = f"{name}.gate"
    shares, which = ops.top(attention_kernels.softmax_fp32(logits), experts.top, "shares of a token's experts")
    if normalises:
        shares = ops.divide_in_place(shares, ops.total(shares))
    shares = ops.to(shares, x.dtype, "shares of a token's experts")
    out, block_locals = in_turn(net, f"{name}.experts", x, (shares, which), experts, names)
    return out, [*block_locals, logits, shares, which]


def in_order(net: Modules, name: str, x: Tensor, to: Routed, experts: Experts) -> Tensor:
    """DeepseekV2MoE.moe: rows are sorted by expert, every expert takes a slice, the outputs are concatenated."""
    tape, (tokens, width), (shares, _) = net.tape, x.shape, to
    count = tokens * experts.top
    rows = ceil_div(count, experts.number)
    tape.module = name
    counts = [tape.empty((tokens, experts.number), "int64", "experts of each token")]
    order = tape.empty((count,), "int64", "order of the rows")
    ordered = ops.chosen(x, tape.empty((count,), "int64", "token of each row"), (count, width), "rows by expert")
    outputs: list[Tensor] = []
    for number, copies in repetitions(experts.number):
        with tape.repeated.standing_for(copies):
            expert_rows = ops.sliced(ordered, (rows, width))
            outputs.append(gated(net, f"{name}.{number}", expert_rows, experts.width, experts.act))
            del expert_rows
    tape.module = name
    out = ops.join_rows(outputs, (count, width))
    by_token = ops.chosen(out, order, out.shape, "rows by token")
    wide = ops.to(by_token.view(tokens, experts.top, width), shares.dtype, "rows by token")
    wide = ops.mul_in_place(wide, shares.view(tokens, experts.top, 1), viewed=by_token.dtype == shares.dtype)
    total = ops.sum_middle(wide)
    del wide
    total = ops.to(total, x.dtype, "output")
    del counts, outputs, ordered, out
    return total
