"""One run of the small language model under a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import cos, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.adaptive.language_model import LanguageModel, draw
from vramplan.adaptive.controller import Controller, Observation
from vramplan.adaptive.rung import Rung

WARM_UP, LAST_RATE = 0.05, 0.1
"""Share of the run that warms up, and of the peak rate that is left at the end of the cosine."""
BETAS = (0.9, 0.999)
"""At `FIRST_BATCH`; at others the second keeps its half-life in samples."""
FIRST_BATCH = 8
PARTS = 2
"""Micro-batches of a step, whose gradients' norms are measured: the fewest that tell noise from signal."""
POINTS = 64
"""Of the trajectory that is kept."""


class Run(NamedTuple):
    """What came of a run."""

    weights: Mapping[str, Tensor]
    loss: float
    """Validation loss in nats."""
    steps: int
    samples: int
    trajectory: list[dict[str, float]]
    decisions: list[dict[str, Any]]
    record: list[Observation]
    unused: dict[str, int]


def rungs(batches: Sequence[int]) -> tuple[Rung, ...]:
    """A ladder of these batches in two micro-batches each."""
    return tuple(Rung(batch // PARTS, PARTS) for batch in batches)


def schedule(share: float) -> float:
    """Share of the peak rate after a share of the run."""
    if share < WARM_UP:
        return share / WARM_UP
    return LAST_RATE + (1 - LAST_RATE) * (1 + cos(pi * min(1.0, (share - WARM_UP) / (1 - WARM_UP)))) / 2


def train(
    source: Tensor,
    samples_total: int,
    validation: Callable[[LanguageModel], float],
    controller: Controller,
    rate: float,
    seed: int,
    start: Mapping[str, Tensor] | None = None,
    preconditioned: bool = False,
    record_every: int = 0,
) -> Run:
    """Train on so many samples, or a few more where the last batch is not cut.

    Args:
        source: Characters to train on.
        samples_total: Samples of the run.
        validation: The loss of a model on held-out text.
        controller: Decides the batch after each step.
        rate: Peak learning rate at the controller's base batch.
        seed: Of the weights and the samples; the samples come in the same order at any batch.
        start: Weights to begin with; None for new ones.
        preconditioned: Whether norms are those of the gradient divided by the root of Adam's second moment.
        record_every: Steps from one observation that is kept to the next; 0 for none.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = LanguageModel()
    if start is not None:
        model.load_state_dict(start)
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=rate, betas=BETAS, weight_decay=0.01, fused=True)
    step = samples = 0
    trajectory: list[dict[str, float]] = []
    decisions: list[dict[str, Any]] = []
    record: list[Observation] = []
    while samples < samples_total:
        rung = controller.rung
        parts = rung.gradient_accumulation_steps
        scale = _scale(optimizer, weights) if preconditioned else None
        mean = [torch.zeros_like(weight) for weight in weights]
        loss = small = 0.0
        for _ in range(parts):
            part_loss = model.loss(draw(source, rung.micro_batch_size, generator))
            gradients = torch.autograd.grad(part_loss, weights)
            small += _norm_squared(gradients, scale) / parts
            torch._foreach_add_(mean, gradients, alpha=1 / parts)
            loss += part_loss.item() / parts
        group = optimizer.param_groups[0]
        planned = rate * schedule((samples + rung.global_batch_size // 2) / samples_total)
        group["lr"], group["betas"] = planned * controller.learning_rate_factor, controller.betas(BETAS)
        large = _norm_squared(mean, scale)
        for weight, gradient in zip(weights, mean, strict=True):
            weight.grad = gradient
        optimizer.step()
        step, samples = step + 1, samples + rung.global_batch_size
        observation = Observation(
            step=step,
            samples=samples,
            tokens=samples * 64,
            loss=loss,
            learning_rate=planned,
            small_norm_squared=small,
            small_batch=rung.micro_batch_size,
            large_norm_squared=large,
            large_batch=rung.global_batch_size,
        )
        decision = controller.observe(observation)
        if record_every and step % record_every == 0:
            record.append(observation)
        if decision is not None:
            decisions.append(decision.as_dict())
        if samples * POINTS // samples_total > (samples - rung.global_batch_size) * POINTS // samples_total:
            estimate = controller.policy.average.estimate() if hasattr(controller.policy, "average") else None
            point = {"samples": samples, "batch": rung.global_batch_size, "rate": group["lr"], "loss": round(loss, 4)}
            trajectory.append(point | ({"noise_scale": round(estimate.noise_scale, 2)} if estimate else {}))
    return Run(model.state_dict(), validation(model), step, samples, trajectory, decisions, record, controller.unused)


def _scale(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> list[Tensor] | None:
    """What Adam divides the gradient by; None before its first step."""
    if weights[0] not in optimizer.state:
        return None
    beta2 = optimizer.param_groups[0]["betas"][1]
    states = [optimizer.state[weight] for weight in weights]
    return [(state["exp_avg_sq"] / (1 - beta2 ** float(state["step"]))).sqrt() + 1e-8 for state in states]


def _norm_squared(gradients: Sequence[Tensor], scale: list[Tensor] | None) -> float:
    if scale is not None:
        gradients = torch._foreach_div(list(gradients), scale)
    return sum(norm.item() ** 2 for norm in torch._foreach_norm(list(gradients)))
