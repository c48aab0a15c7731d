"""Rates that kernels reach, by generation of GPU, as they were learned from published training speeds.

``python -m tests.learn_times`` writes `rates.json` beside this file.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.inputs.gpu import Gpu

_PATH = Path(__file__).with_name("rates.json")


class Rates(NamedTuple):
    """Shares of a GPU's nominal rates that kernels reach, and fixed times."""

    matmul: float
    """Of the dense peak, by large matrix products. Above 1 if a GPU clocks higher than its nominal boost."""
    attention: float
    """Of the dense peak, by the forward of fused attention."""
    attention_backward: float
    """The same of its backward."""
    matmul_depth: float
    """Depth (the dimension that is summed over) at which a product's start and end take as long as its loop."""
    matmul_results: float
    """Elements of a result below which half of the GPU or more is idle."""
    bandwidth: float
    """Of the memory bandwidth, by elementwise kernels."""
    dequantize: float
    """The same by bitsandbytes' kernels that dequantize four-bit weights."""
    kernel_seconds: float
    """Between two kernels on the GPU."""
    launch_seconds: float
    """Of the host, for one op of eager PyTorch, its share of Python included."""
    zero3_seconds: float
    """Of the host, for DeepSpeed's hooks around one weight that ZeRO-3 gathers."""
    step_seconds: float
    """Of the host, for what a training loop does once per optimizer step."""


class Generation(NamedTuple):
    """What is known of the rates of a generation of GPUs."""

    rates: Rates
    runs: int
    """Published runs on such GPUs that they were learned from; 0 if the rates are those of all others."""
    relative_error: float
    """What 90 % of the estimates stay within, on runs that were left out while learning."""


def rates_of(gpu: Gpu) -> Rates:
    """The rates of a GPU's generation."""
    return generation_of(gpu).rates


def generation_of(gpu: Gpu) -> Generation:
    """What is known of a GPU's generation.

    If there are no runs of it, GPUs as a whole and the power limit tell: the more watts a GPU has for its peak, the
    nearer it comes to it.
    """
    known = _generation(generation_name(gpu))
    if known.runs or gpu.power_watts is None or "fp16" not in gpu.flops_per_second:
        return known
    learned = _learned()
    watts = gpu.power_watts / (gpu.flops_per_second["fp16"] / 1e12)
    matmul = min(1.0, learned["power_factor"] * watts ** learned["power_exponent"])
    return known._replace(rates=known.rates._replace(matmul=matmul))


def is_timed(gpu: Gpu) -> bool:
    """Whether times are known: on NVIDIA GPUs with tensor cores, of which the published runs are, of known rates."""
    return gpu.capability >= (7, 0) and "GTX" not in gpu.title and not gpu.rates_from


def generation_name(gpu: Gpu) -> str:
    """The compute capability, "geforce" added; the vendor if it is not NVIDIA.

    GeForce's tensor cores accumulate in fp32 at half rate and clock above the nominal boost; workstation and data
    center boards of the same generation run into their power limit first.
    """
    if gpu.compute_capability is None:
        return gpu.vendor
    return f"{gpu.compute_capability}{' geforce' if gpu.form in ('desktop', 'laptop') else ''}"


@cache
def _generation(name: str) -> Generation:
    learned = _learned()
    own = learned["generations"].get(name, {"runs": 0, "relative_error": learned["unseen_error"]})
    values = {**learned["all"], **{key: value for key, value in own.items() if key in Rates._fields}}
    return Generation(Rates(**values), own["runs"], own["relative_error"])


@cache
def _learned() -> dict[str, Any]:
    learned: dict[str, Any] = json.loads(_PATH.read_bytes())
    return learned


def forget() -> None:
    """Read the file again at the next question."""
    _learned.cache_clear()
    _generation.cache_clear()
