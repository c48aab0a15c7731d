"""What vLLM takes of a GPU that it shares with a training run.

Mirrors vLLM 0.33 as TRL 1.16 starts it in its own processes (trl/generation/vllm_generation.py: _init_vllm).
"""

from __future__ import annotations

from math import ceil

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.memory.timeline import Storage
from vramplan.units import MiB

ASLEEP_BYTES = 768 * MiB
"""What stays while vLLM sleeps: CUDA graphs, workspaces, loaded kernels. Weights and KV cache are in pools of their own
that sleep gives back; the rest is not (vllm/v1/worker/gpu_worker.py: sleep). Reported: 0.27 GiB of 19.8 for a 72B with
tensor parallel 16 (vllm#17117), 774 MiB with the CUDA context of a process of its own for a 1B (NeMo-RL#223), and 0.36
GiB of CUDA graphs (gpustack/runner#251). Not measured here."""


def sleeps(job: Job) -> bool:
    """Whether vLLM shares the GPUs and gives memory back while the model trains."""
    return is_colocated(job) and job.generate_with == "vllm_sleep"


def requested_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes that vLLM takes while it is awake: its share of the whole GPU, whatever the model needs.

    The weights, the peak of a forward's activations, and what lies outside of PyTorch are measured first; the KV cache
    gets all the rest (vllm/v1/worker/utils.py: request_memory; gpu_worker.py: determine_available_memory).
    """
    return ceil(gpu.cuda_total_bytes * job.vllm_share)


def asleep() -> Storage:
    """What stays of vLLM while it sleeps."""
    return Storage(ASLEEP_BYTES, "vllm", "vLLM asleep: CUDA graphs, workspaces", "not measured", in_kernel=True)


def awake(job: Job, gpu: Gpu, weight_bytes: int, is_shared: bool) -> list[Storage]:
    """What vLLM takes while it is awake, beside what stays while it sleeps: its weights, and the rest of its share.

    How much of the rest is KV cache is not known: vLLM measures its activations as it starts.

    Args:
        job: the job.
        gpu: the GPU.
        weight_bytes: bytes of its weights on one of its GPUs.
        is_shared: whether they are the trained model's too, and counted there.
    """
    rest = requested_bytes(job, gpu) - weight_bytes - (ASLEEP_BYTES if sleeps(job) else 0)
    text = f"the rest of {job.vllm_share:g} of the GPU's {gpu.cuda_total_bytes >> 20:,} MiB, of which vLLM measures"
    own = [] if is_shared else [weights(job, weight_bytes)]
    name = "vLLM: KV cache, activations, CUDA graphs"
    return [*own, Storage(max(0, rest), "vllm", name, f"{text} all but the cache as it starts", in_kernel=True)]


def weights(job: Job, weight_bytes: int) -> Storage:
    """The weights of vLLM's own copy of the model, on one of its GPUs."""
    parallel = job.vllm_tensor_parallel
    text = "" if parallel == 1 else f"a copy on {parallel} GPUs"
    return Storage(weight_bytes, "vllm_weights", "vLLM: weights", text, in_kernel=True)


def fixed_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes that are known without an estimate, and so need no safety margin: with weights that vLLM shares."""
    if not is_colocated(job):
        return 0
    if job.verl.engine == "sglang":
        return 0  # its share is of what is free, and what stays of it is not known to the byte
    return ASLEEP_BYTES if sleeps(job) else requested_bytes(job, gpu)
