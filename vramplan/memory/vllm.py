"""What vLLM takes of a GPU that it shares with a training run.

Mirrors vLLM 0.33 as TRL 1.16 starts it in its own processes (trl/generation/vllm_generation.py: _init_vllm).
"""

from __future__ import annotations

from math import ceil

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import ROLLOUTS, Job
from vramplan.memory.timeline import Storage
from vramplan.units import MiB

ASLEEP_BYTES = 768 * MiB
"""What stays while vLLM sleeps: CUDA graphs, workspaces, loaded kernels. Weights and KV cache are in pools of their own
that sleep gives back; the rest is not (vllm/v1/worker/gpu_worker.py: sleep). Reported: 0.27 GiB of 19.8 for a 72B with
tensor parallel 16 (vllm#17117), 774 MiB with the CUDA context of a process of its own for a 1B (NeMo-RL#223), and 0.36
GiB of CUDA graphs (gpustack/runner#251). Not measured here."""


def is_colocated(job: Job) -> bool:
    """Whether vLLM shares the GPUs of the training run."""
    return job.task in ROLLOUTS and job.generate_with in ("vllm", "vllm_sleep")


def sleeps(job: Job) -> bool:
    """Whether vLLM shares the GPUs and gives memory back while the model trains."""
    return job.task in ROLLOUTS and job.generate_with == "vllm_sleep"


def requested_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes that vLLM takes while it is awake: its share of the whole GPU, whatever the model needs.

    Weights, activations and CUDA graphs are measured first; the KV cache gets all the rest (vllm/v1/worker/utils.py:
    request_memory; gpu_worker.py: determine_available_memory).
    """
    return ceil(gpu.cuda_total_bytes * job.vllm_share)


def held(job: Job, gpu: Gpu, shared_bytes: int) -> Storage:
    """What vLLM holds all the time: everything, or what stays while it sleeps.

    Args:
        job: the job.
        gpu: the GPU.
        shared_bytes: bytes of weights that are vLLM's and the trained model's at once, counted there.
    """
    if sleeps(job):
        return Storage(ASLEEP_BYTES, "vllm", "vLLM asleep: CUDA graphs, workspaces", "not measured", in_kernel=True)
    text = f"{job.vllm_share:g} of the GPU's {gpu.cuda_total_bytes >> 20:,} MiB"
    text += ", less the weights that it shares" if shared_bytes else ""
    size = max(0, requested_bytes(job, gpu) - shared_bytes)
    return Storage(size, "vllm", f"vLLM: {_contents(shared_bytes)}", text, in_kernel=True)


def woken(job: Job, gpu: Gpu, shared_bytes: int) -> Storage:
    """What vLLM takes beside that to generate, if it sleeps in between; see :func:`held`."""
    size = max(0, requested_bytes(job, gpu) - ASLEEP_BYTES - shared_bytes)
    return Storage(size, "vllm", f"vLLM awake: {_contents(shared_bytes)}", in_kernel=True)


def _contents(shared_bytes: int) -> str:
    return "activations, KV cache" if shared_bytes else "weights, activations, KV cache"


def fixed_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes that are known without an estimate, and so need no safety margin: with weights that vLLM shares."""
    if not is_colocated(job):
        return 0
    return ASLEEP_BYTES if sleeps(job) else requested_bytes(job, gpu)
