"""SGLang on the GPUs that train, as verl 0.7.1 to 0.9.1 runs it: what it holds, and weights on their way to it."""

from __future__ import annotations

from math import prod

from vramplan.analytic.layers.context import heads_of
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory import sglang
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, MiB, ceil_div, format_bytes


def loaded_bytes(step: Step) -> int:
    """Bytes of the actor's weights on the GPU as SGLang starts, after the training loaded them.

    (trainer/ppo/ray_trainer.py: init_workers.) The critic's, which are there as well, are left out.
    """
    job = step.job
    if job.verl.param_offload:
        return 0
    whole = sum(prod(one.parameter.shape) for one in step.placed) * DTYPE_BYTES[job.dtype]
    return whole // (job.num_gpus // job.fsdp.replicas)


def sglang_held(step: Step, weight_bytes: int) -> list[Storage]:
    """What SGLang holds all the time: with ``free_cache_engine=False`` all of it."""
    kept = [sglang.asleep(step.job, step.card)]
    return kept if step.job.generate_with == "vllm_sleep" else [*kept, *sglang_awake(step, weight_bytes)]


def sglang_awake(step: Step, weight_bytes: int) -> list[Storage]:
    """What it takes while it generates, beside what stays while it sleeps.

    Raises:
        ConfigError: in SGLang's words, if its share does not hold its weights.
    """
    loaded = loaded_bytes(step)
    check_share(step.job, step.card, weight_bytes, loaded)
    return sglang.awake(step.job, step.card, weight_bytes, loaded, sizes_of(step))


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def sizes_of(step: Step) -> sglang.Sizes | None:
    """The sizes of a dense model's layers; None for others."""
    config = step.setting.config
    widths = [config.get(name) for name in ("hidden_size", "intermediate_size")]
    if any(config.get(name) for name in EXPERTS) or not all(isinstance(width, int) for width in widths):
        return None
    heads = heads_of(config)
    vocabulary = step.setting.architecture.shape(config).vocabulary
    return sglang.Sizes(
        config.count("hidden_size"),
        config.count("intermediate_size"),
        heads.query * heads.dim,
        heads.key * heads.dim,
        vocabulary,
    )


def check_share(job: Job, gpu: Gpu, weight_bytes: int, loaded: int) -> None:
    """Refuse a share that leaves no room for a cache beside the weights: SGLang does not start with it.

    (srt/model_executor/model_runner.py: init_memory_pool.)
    """
    static = sglang.static_bytes(job, gpu, loaded)
    if weight_bytes >= static:
        raise ConfigError(
            f"{setting('vllm_share', job.vllm_share)}: SGLang stops: Not enough memory. Please try to increase"
            f" --mem-fraction-static: it gets {format_bytes(static)}, and its weights take {format_bytes(weight_bytes)}"
            "; give it a larger share, or more GPUs for each copy"
        )


def sent_bucket(step: Step) -> Storage:
    """Whole weights that wait to be sent together: as many as the bucket holds, or one that is larger.

    verl up to 0.8 clones them, 0.9.1 keeps what was gathered (sglang_rollout/utils.py: get_named_tensor_buckets);
    SGLang reads them where they are.
    """
    job = step.job
    sizes = [prod(one.parameter.shape) * DTYPE_BYTES[job.dtype] for one in step.placed]
    held = max(min(job.verl.bucket_mib * MiB, sum(sizes)), max(sizes))
    return Storage(held, "communication", "bucket of weights on their way to SGLang")


def least_share(job: Job, gpu: Gpu, weight_bytes: int) -> int:
    """The smallest share, in hundredths, that holds SGLang's weights beside some cache; 100 if none does."""
    shards = (
        0
        if job.verl.param_offload
        else weight_bytes
        * job.vllm_tensor_parallel
        * DTYPE_BYTES[job.dtype]
        // (DTYPE_BYTES["bf16"] * (job.num_gpus // job.fsdp.replicas))
    )
    return min(100, ceil_div(100 * weight_bytes, max(1, gpu.cuda_total_bytes - shards)) + 1)
