"""What should be known beside a time: why there is none, or what it leaves out."""

from __future__ import annotations

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.step_time.link_rates import MOST_PER_NODE, fit_in_nodes, rate_in_node
from vramplan.step_time.rates import is_timed

LIGER = (
    "counted is Liger's loss alone: with its kernels for RMSNorm, SwiGLU and RoPE as well, as transformers'"
    " use_liger_kernel has them, layers keep less and a step takes 5 to 20% less; give --fused-kernels all"
)
"""Published runs of fms-acceleration (A100, 7 %) and LLaMA-Factory (RTX 4090, 5 to 24 %) against times without them."""


def time_notes(job: Job, gpu: Gpu) -> list[str]:
    """Notes on the time of a step."""
    if not is_timed(gpu):
        return rate_notes(gpu)
    return [
        *link_notes(job, gpu),
        *rate_notes(gpu),
        *([LIGER] if job.loss == "liger" and not job.fused_kernels else []),
    ]


def rate_notes(gpu: Gpu) -> list[str]:
    """A note on a GPU whose times are not known, or depend on its power limit."""
    if is_timed(gpu):
        watts = f"{gpu.power_watts} W" if gpu.power_watts is not None else "its usual power limit"
        return [f"times are for {watts}; laptops set other limits"] if gpu.form == "laptop" else []
    if gpu.rates_from:
        return [
            f"the time of a step is not known: bandwidth and rates of the {gpu.title} are not listed;"
            f" batches are ranked by those of the {gpu.rates_from}"
        ]
    kind = f"{gpu.vendor} GPUs" if gpu.compute_capability is None else "GPUs without tensor cores"
    return [
        "the time of a step is not known: rates are learned from published training speeds, and there are none on"
        f" {kind}"
    ]


def link_notes(job: Job, gpu: Gpu) -> list[str]:
    """A note if the time of a step is not known for want of a link's rate."""
    if job.data_parallel == 1:
        return []
    per_node = job.num_gpus // job.num_nodes
    if not fit_in_nodes(job, gpu):
        return [
            f"the time of a step is not known: a machine holds {max(MOST_PER_NODE, gpu.nvlink_gpus)} such GPUs, not"
            f" {per_node}; say how many machines there are (--nodes), and their network (--network, in Gbit/s)"
        ]
    if job.num_nodes > 1 and gpu.links.network_bytes_per_second is None:
        return [
            f"the time of a step on {job.num_nodes} nodes is not known without the rate of their network (--network, in"
            " Gbit/s)"
        ]
    if per_node > 1 and rate_in_node(gpu, per_node) is None:
        return [f"the time of a step is not known: the rate of links between {gpu.title}s is not known"]
    return []
