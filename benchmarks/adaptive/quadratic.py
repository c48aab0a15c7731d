"""The batch that the noise scale chooses on a noisy quadratic, against the analytic optimum.

The loss is half the sum of h_i x_i^2, and a sample's gradient is h_i x_i with Gaussian noise of known covariance. The
batch at which samples and steps are traded one to one is, at any point (arXiv 1812.06162, section 2.2),

    B_noise = tr(H Sigma) / (G^T H G)

which the controller does not see: it measures tr(Sigma) / |G|^2 from norms. Both are the same where all h_i are.
"""

from __future__ import annotations

from typing import Any

import torch

from vramplan.adaptive.controller import Controller, Observation
from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.policies.by_name import STEPS
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.rung import Rung

DIMENSIONS = 2000
FIRST, LARGEST, SMALL = 4, 2048, 2
"""The ladder's ends, and the samples of a micro-batch."""
RATE = 0.002
SAMPLES = 200_000
HESSIANS = {"all curvatures alike": 0.0, "curvature falls as 1/sqrt(n)": 0.5}
SEEDS = range(5)


def measure() -> list[dict[str, Any]]:
    """The share of samples, from the first change on, that were taken within twice and half of the optimum."""
    return [_measure(hessian, seed) for hessian in HESSIANS for seed in SEEDS]


def _measure(hessian: str, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    curvature = torch.arange(1, DIMENSIONS + 1, dtype=torch.float64) ** -HESSIANS[hessian]
    point = torch.ones(DIMENSIONS, dtype=torch.float64)
    trace = FIRST * float(((curvature * point) ** 2).sum())  # the noise scale begins at the first batch
    variance = curvature * trace / curvature.sum()
    ladder = tuple(Rung(SMALL, FIRST * 2**power // SMALL) for power in range((LARGEST // FIRST).bit_length()))
    policy = NoiseScalePolicy(half_life=STEPS * FIRST)
    controller = Controller(ladder, policy, Coupling("none"), dwell=STEPS * FIRST)
    step = samples = within = counted = 0
    changed, ratios, trail = False, [], []
    while samples < SAMPLES and controller.rung is not ladder[-1]:
        batch, count = controller.rung.global_batch_size, controller.rung.gradient_accumulation_steps
        true = curvature * point
        optimum = float((curvature * variance).sum() / (true @ (curvature * true)))
        noise = (variance / batch).sqrt() * torch.randn(DIMENSIONS, generator=generator, dtype=torch.float64)
        gradient = true + noise
        large = float(gradient @ gradient)
        # the squared distances of the micro-batches' gradients from their mean: chi-squared, direction by direction
        degrees = torch.full((DIMENSIONS,), (count - 1) / 2, dtype=torch.float64)
        spread = 2 * torch._standard_gamma(degrees, generator=generator)
        small = large + float((variance / SMALL * spread).sum()) / count
        if changed:
            counted += batch
            within += batch * (0.5 <= batch / optimum <= 2)
            ratios.append(batch / optimum)
        point = point - RATE * gradient
        step, samples = step + 1, samples + batch
        observation = Observation(
            step=step,
            samples=samples,
            tokens=samples,
            small_norm_squared=small,
            small_batch=SMALL,
            large_norm_squared=large,
            large_batch=batch,
        )
        if controller.observe(observation) is not None:
            changed = True
            trail.append({"samples": samples, "batch": controller.rung.global_batch_size, "optimum": round(optimum, 1)})
    return {
        "hessian": hessian,
        "seed": seed,
        "steps": step,
        "samples": samples,
        "share_within_twice": within / counted,
        "median_of_batch_to_optimum": sorted(ratios)[len(ratios) // 2],
        "smallest": min(ratios),
        "largest": max(ratios),
        "changes": trail,
    }
