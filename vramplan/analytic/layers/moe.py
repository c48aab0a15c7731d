"""The feed-forward layer of a mixture of experts (MoE): a router, and the experts of each token.

Mirrors transformers 5.23, integrations/moe.py: grouped_mm_experts_forward, the default `experts_implementation`
(modeling_utils.py: get_correct_experts_implementation). Each token has a row for each of its experts. Rows are sorted
by expert and no group is padded, so an uneven router costs time and no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import attention_kernels, moe_peft
from vramplan.analytic.layers.liger_experts import fused_experts
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules


class Experts(NamedTuple):
    """Shape of the experts of a layer."""

    number: int
    top: int
    """Number of experts of each token."""
    width: int
    """Width of an expert's inner layer."""
    act: str = "silu"
    biased: bool = False
    transposed: bool = False
    """Whether weights are stored as the product takes them, (experts, in, out); otherwise it gets views."""
    first: bool = False
    """Whether the module defines them before the router."""
    has_gate: bool = True
    """Whether the inner layer is gated; otherwise its weight is ``up_proj``."""

    @property
    def into(self) -> tuple[str, int]:
        """Name and width of the first weight."""
        return ("gate_up_proj", 2 * self.width) if self.has_gate else ("up_proj", self.width)


Routed = tuple[Tensor, Tensor]
"""Shares and indices of each token's experts, both (tokens, experts of a token)."""

# -- routers -----------------------------------------------------------------------------------------------------------


def router_weight(net: Modules, name: str, experts: int, width: int, dtype: str = "") -> Tensor:
    """A router's weight; PEFT adds an adapter's ``lora_B @ lora_A`` twice, the first time to check shapes.

    `dtype`: as :meth:`Modules.parameter` takes it.
    """
    training = net.training
    net.routers.add(name)
    weight = net.parameter(f"{name}.weight", experts, width, dtype=dtype)
    if not _adapted(net, "gate.weight"):
        return weight
    rank = training.lora_rank
    down = net.parameter(f"{name}.lora_A.weight", rank, width, adapter=True)
    up = net.parameter(f"{name}.lora_B.weight", experts, rank, adapter=True)
    delta = ops.matmul(up, down, 2 * rank * weight.num_elements, weight.shape, "weight of the adapter")
    delta = ops.to(ops.scale(delta, "scaled weight of the adapter"), weight.dtype)
    ops.add(weight, delta, "weight with adapter")
    return ops.add(weight, delta, "weight with adapter")


def softmax_router(
    net: Modules, name: str, x: Tensor, experts: Experts, normalises: bool, widens: bool = False
) -> Routed:
    """Top-k of a softmax in fp32, cast back to the logits' dtype unless `widens` (mixtral)."""
    weight = router_weight(net, name, experts.number, x.shape[-1])
    net.tape.module = name
    logits = ops.linear(x, weight, None, "router logits")
    shares = attention_kernels.softmax_fp32(logits)
    best, which = ops.top(shares, experts.top, "shares of a token's experts")
    if normalises:
        best = ops.divide_in_place(best, ops.total(best))
    return best if widens else ops.to(best, logits.dtype, "shares of a token's experts"), which


def wide_logits(net: Modules, name: str, x: Tensor, experts: Experts) -> Tensor:
    """``F.linear(x.type(float32), weight.type(float32))``; autocast casts both back for the product."""
    weight = router_weight(net, name, experts.number, x.shape[-1])
    net.tape.module = name
    wide = ops.to(x, "fp32", "tokens in fp32"), ops.to(weight, "fp32", "router's weight in fp32")
    return ops.linear(*wide, None, "router logits")


class Groups(NamedTuple):
    """Groups of experts, and how many of them a token's experts are chosen from."""

    number: int = 1
    best: int = 1


def wide_router(net: Modules, name: str, x: Tensor, experts: Experts, groups: Groups | None) -> Routed:
    """DeepSeek V2: top-k of a softmax in fp32; with `groups`, in the groups with the largest maximum."""
    scores = attention_kernels.softmax_fp32(wide_logits(net, name, x, experts))
    router_locals: list[Tensor] = []
    if groups is not None:
        best, _ = ops.top(by_group(scores, groups), 1, "best of each group")
        excluded, router_locals = outside(best.view(x.shape[0], groups.number), groups, experts)
        scores = ops.masked(scores, excluded)
        router_locals += [best, excluded]
    best, which = ops.top(scores, experts.top, "shares of a token's experts")
    del router_locals
    return ops.scale(best, "scaled shares"), which


def scored_router(
    net: Modules, name: str, x: Tensor, experts: Experts, groups: Groups, normalises: bool, correction: str
) -> Routed:
    """DeepSeek V3: sigmoid scores; top-k in the groups whose two largest scores have the largest sum.

    `correction` is the dtype of a buffer that is added to the scores for the choice. The choice runs with gradients
    enabled, although none flow through it; before transformers 5 it was a function without gradients.
    """
    scores = ops.sigmoid(wide_logits(net, name, x, experts))
    with net.tape.no_grad() if net.training.linear_experts else nullcontext():
        which, router_locals = best_of_groups(net, scores, experts, groups, correction)
    if net.training.linear_experts:
        router_locals.clear()
    shares = ops.gather(scores, which, which.shape)
    if normalises:
        shares = ops.divide_in_place(shares, ops.shift(ops.total(shares)))
    shares = ops.scale(shares, "scaled shares")
    del router_locals
    return shares, which


def best_of_groups(
    net: Modules, scores: Tensor, experts: Experts, groups: Groups, correction: str
) -> tuple[Tensor, list[Tensor]]:
    """Indices of a token's experts, and the locals that chose them."""
    choice = ops.add(scores, net.resident((experts.number,), correction), "corrected scores")
    best = ops.total(ops.top(by_group(choice, groups), 2, "two best of each group")[0])
    excluded, mask_locals = outside(best.view(scores.shape[0], groups.number), groups, experts)
    choice = ops.masked(choice, excluded)
    which = ops.top(choice, experts.top, "scores of a token's experts")[1]
    return which, [*mask_locals, best, excluded, choice]


def by_group(scores: Tensor, groups: Groups) -> Tensor:
    """Scores as (tokens, groups, experts of a group)."""
    tokens, experts = scores.shape
    return scores.view(tokens, groups.number, experts // groups.number)


def outside(scores: Tensor, groups: Groups, experts: Experts) -> tuple[Tensor, list[Tensor]]:
    """Mask of the experts outside the best groups, and the locals held until the router returns."""
    tape, tokens = scores.tape, scores.shape[0]
    mask_locals = [ops.top(scores, groups.best, "best groups")[1]]
    mask_locals.append(tape.empty((tokens, groups.number), scores.dtype, "mask of groups"))
    mask_locals.append(tape.empty((tokens, experts.number), scores.dtype, "mask of experts"))
    inside = tape.empty((tokens, experts.number), "bool", "experts inside")
    excluded = tape.empty(inside.shape, "bool", "experts outside")
    del inside
    return excluded, mask_locals


# -- experts -----------------------------------------------------------------------------------------------------------


def gated(gate_up: Tensor, experts: Experts) -> Tensor:
    """_default_apply_gate: ``gate, up = both.chunk(2); act(gate) * up``; without a gate the activation alone."""
    if not experts.has_gate:
        return activation(experts.act)(gate_up)
    gate, up = ops.split(gate_up, experts.width, experts.width)
    return ops.mul(activation(experts.act)(gate), up)


def declare(net: Modules, name: str, width: int, experts: Experts) -> None:
    """Declare the weights of all experts in the module's order."""
    for last, rows, columns in ((*experts.into, width), ("down_proj", width, experts.width)):
        weight = net.parameter(f"{name}.{last}", experts.number, rows, columns)
        weight.viewed = not experts.transposed


def routed(
    net: Modules, name: str, x: Tensor, to: Routed, experts: Experts, gate: Callable[[Tensor, Experts], Tensor] = gated
) -> Tensor:
    """Outputs of each token's experts, summed by its shares: (tokens, width) in and out."""
    tape, (tokens, width), (shares, _) = net.tape, x.shape, to
    rows = tokens * experts.top
    tape.module = name
    declare(net, name, width, experts)
    # PEFT wraps the last parameter outermost, so its factors are computed first
    second = expert_weight(net, f"{name}.down_proj", (experts.number, width, experts.width))
    first_name, inner = experts.into
    first = expert_weight(net, f"{name}.{first_name}", (experts.number, inner, width))
    tape.module = name
    if net.liger.experts:
        indices = tape.empty((tokens, experts.top), "int32", "experts of each token")
        into, back_from = first(), second()
        return fused_experts(x, into, back_from, shares, experts.top)
    by_expert = [tape.empty((rows,), "int64", what) for what in ("experts in order", "order of the rows")]
    picked = ops.chosen(x, tape.empty((rows,), "int64", "token of each row"), (rows, width), "rows by expert")
    weights = ops.chosen(shares.view(rows), by_expert[1], (rows,), "shares by expert")
    counts = [tape.empty((size,), "int32", "rows of each expert") for size in (rows, experts.number)]
    offsets = tape.empty((experts.number,), "int32", "where experts end")
    bias = expert_bias(net, name, first_name, by_expert[0], experts, inner)
    into = first()  # both held until the function returns: cached by torch.nn.utils.parametrize
    chosen = selected(into, rows) if net.decodes else into
    out = ops.grouped(picked, into, offsets, inner, "gate and up")
    out = out if bias is None else ops.add_in_place(out, bias)
    out = gate(out, experts)
    bias = expert_bias(net, name, "down_proj", by_expert[0], experts, width)
    back_from = second()
    chosen = selected(back_from, rows) if net.decodes else back_from
    out = ops.grouped(out, back_from, offsets, width, "output of the experts")
    out = out if bias is None else ops.add_in_place(out, bias)
    weighted = ops.mul(out, weights.view(rows, 1), "weighted output")
    back = tape.empty((rows,), "int64", "order of the tokens")
    weighted = ops.chosen(weighted, back, (rows, width), "rows by token")
    total = ops.sum_groups(weighted, experts.top)
    del by_expert, counts, into, back_from, bias, chosen
    return ops.to(total, x.dtype, "output")


def selected(weight: Tensor, rows: int) -> Tensor:
    """``weight[expert_ids]``: a copy of its expert's weight for each row, in forwards of one token.

    (integrations/moe.py: batched_mm_experts_forward, which generation/utils.py chooses: _optimize_model_for_decode.)
    """
    copied = weight.tape.empty((rows, *weight.shape[1:]), weight.dtype, "weights of the chosen experts")
    weight.tape.work(0, 2 * copied.num_bytes, weight.dtype)
    return copied


def expert_bias(net: Modules, name: str, of: str, by_expert: Tensor, experts: Experts, width: int) -> Tensor | None:
    """The bias of each row: ``bias[expert of the row]``."""
    if not experts.biased:
        return None
    bias = net.parameter(f"{name}.{of}_bias", experts.number, width)
    return ops.chosen(bias, by_expert, (by_expert.shape[0], width), "bias of each row")


def expert_weight(net: Modules, name: str, shape: tuple[int, int, int]) -> Callable[[], Tensor]:
    """A function that gives the weight of all experts with its adapter; PEFT computes it once before as a check."""
    weight = net.parameter(name, *shape)
    short = name.rpartition(".")[2]
    if not _adapted(net, short):
        return lambda: weight
    (count, out_features, in_features), rank = shape, moe_peft.rank_of(short, net.training.lora_rank)
    down = net.parameter(f"{name}.lora_A.weight", rank * count, in_features, adapter=True)
    up = net.parameter(f"{name}.lora_B.weight", out_features, rank * count, adapter=True)
    factors = (
        ops.to(ops.reordered(up, (count, out_features, rank)), weight.dtype),
        ops.to(down.view(count, rank, in_features), weight.dtype),
    )
    ops.folded(weight, *factors)
    return lambda: ops.folded(weight, *factors)


def _adapted(net: Modules, parameter: str) -> bool:
    training = net.training
    return training.lora_rank > 0 and parameter in moe_peft.adapted(training.peft_expert_pattern, training.lora_targets)
