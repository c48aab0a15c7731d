"""What is missing if no number of some GPUs holds a job, or none without the host's memory."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.links import Links
from vramplan.planner import batch_search
from vramplan.planner.hardware_candidates import gpu_counts, most_of, sharings, with_offload
from vramplan.planner.hardware_plan import HardwarePlan, Shortfall, known, simplest_of_fastest
from vramplan.planner.hardware_question import Question, estimates_of
from vramplan.planner.hardware_sweep import Sweep
from vramplan.planner.levers import DATACENTER, USUAL
from vramplan.units import ceil_div

MOST_TRIED = 64
"""GPUs that are tried if the most that were allowed are too few."""


def shortfall(
    question: Question,
    gpus: Sequence[Gpu],
    counts: Sequence[int],
    max_gpus: int | None,
    max_price: float | None,
    *,
    fits: bool,
) -> Shortfall | None:
    """What is missing on the most of the largest GPU, and what would hold the job; `fits`: with offloading."""
    gpu = max(gpus, key=lambda one: (one.usable_bytes, one.name))
    most = max(count for count in counts if count <= most_of(gpu, count))
    ways = [*sharings([most], question.settings), *with_offload([most], question.settings)]
    needs = []
    for sharing in ways:
        try:
            estimates = estimates_of(question, gpu, sharing)
            every_pair = batch_search.pairs(question.global_batch_size, estimates.job.data_parallel)
            smallest = min(every_pair, key=lambda pair: estimates.begin(*pair).lower_bound_bytes)
            needs.append((estimates(*smallest), sharing))
        except VramplanError:
            continue
    if not needs:
        return None
    estimate, sharing = min(needs, key=lambda need: need[0].device_total_bytes)
    cheapest = None
    if max_price is not None and not fits:
        plans = Sweep(question, gpus, counts).answer().plans
        cheapest = min(plans, key=lambda one: (known(one.price_per_hour), one.num_gpus), default=None)
    usable = None
    if max_gpus is not None and most < max_gpus and most_of(gpu, max_gpus) == max_gpus:
        usable = ceil_div(question.global_batch_size, max_gpus) * max_gpus
    larger = None if cheapest is not None else _larger(question, gpu, most, max_price)
    more = None
    if max_gpus is not None and not fits and larger is cheapest is None:
        more = _more(question, gpu, max_gpus, max_price)
    return Shortfall(gpu, sharing, estimate, larger, cheapest, more, usable)


def _more(question: Question, gpu: Gpu, above: int, max_price: float | None) -> HardwarePlan | None:
    """The fewest of a GPU, more than `above`, that hold the job; None if as many machines as are tried do not."""
    if most_of(gpu, MOST_TRIED) < MOST_TRIED:
        return None
    for count in gpu_counts(question.global_batch_size, MOST_TRIED, None, few=True):
        if count > above:
            plans = Sweep(question, [gpu], [count], max_price).plans(sharings([count], question.settings))
            best = simplest_of_fastest(plans)
            if best is not None:
                return best
    return None


def _larger(question: Question, gpu: Gpu, count: int, max_price: float | None) -> HardwarePlan | None:
    """As many of the smallest usual GPU of the same maker that holds the job, with the same links and limits."""
    usual = (find_gpu(name) for name in (*USUAL, *DATACENTER))
    larger = [one for one in usual if one.vendor == gpu.vendor and one.usable_bytes > gpu.usable_bytes]
    for one in sorted(larger, key=lambda one: one.usable_bytes):
        other = one.model_copy(update={"margin_confidence": gpu.margin_confidence, "links": _links(gpu, one)})
        plans = Sweep(question, [other], [count], max_price).plans(sharings([count], question.settings))
        best = simplest_of_fastest(plans)
        if best is not None:
            return best
    return None


def _links(gpu: Gpu, other: Gpu) -> Links:
    """The links that were given for a GPU, for another; NVLink only if that has it."""
    if gpu.links.link == "nvlink" and other.nvlink_bytes_per_second is None:
        return gpu.links.model_copy(update={"link": None})
    return gpu.links
