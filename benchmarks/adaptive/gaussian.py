"""The estimated noise scale of Gaussian gradients against the known one."""

from __future__ import annotations

from typing import Any

import torch

from vramplan.adaptive.noise_scale import NoiseScale, single_step
from vramplan.adaptive.observation import Observation

DIMENSIONS = 4096
NOISE_SCALE = 500.0
PRECISE = 0.02
"""Relative standard deviation, as the estimator itself says it, at which it is asked."""
MOST_STEPS = 20_000
FEWEST_STEPS = 100
SPECTRA = {"all directions alike": 0.0, "variance falls as 1/sqrt(n)": 0.5}
"""Of the covariance: the power by which the n-th eigenvalue falls."""


def measure() -> list[dict[str, Any]]:
    """For micro-batches of b samples, K of them in a step: steps until it is sure, and its error then."""
    return [
        _measure(spectrum, small, count) for spectrum in SPECTRA for small in (2, 8, 32, 128) for count in (2, 4, 8)
    ]


def _measure(spectrum: str, small: int, count: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    variance = torch.arange(1, DIMENSIONS + 1, dtype=torch.float64) ** -SPECTRA[spectrum]
    variance *= NOISE_SCALE / variance.sum()  # with |G|^2 = 1
    deviation = (variance / small).sqrt()
    signal = torch.full((DIMENSIONS,), DIMENSIONS**-0.5, dtype=torch.float64)
    average, ratios, steps, estimate = NoiseScale(half_life=10**12), [], 0, None
    while steps < MOST_STEPS:
        steps += 1
        parts = signal + deviation * torch.randn(count, DIMENSIONS, generator=generator, dtype=torch.float64)
        mean = parts.mean(0)
        observation = Observation(
            step=steps,
            samples=0,
            tokens=0,
            small_norm_squared=float((parts**2).sum(1).mean()),
            small_batch=small,
            large_norm_squared=float(mean @ mean),
            large_batch=small * count,
        )
        trace, square = single_step(observation)
        average.add(trace, square, 1)
        ratios.append(trace / square)
        estimate = average.estimate()
        if steps >= FEWEST_STEPS and estimate is not None and estimate.relative_std < PRECISE:
            break
    assert estimate is not None
    return {
        "spectrum": spectrum,
        "b": small,
        "K": count,
        "steps": steps,
        "relative_std": estimate.relative_std,
        "error": estimate.noise_scale / NOISE_SCALE - 1,
        "error_of_mean_of_ratios": sum(ratios) / len(ratios) / NOISE_SCALE - 1,
    }
