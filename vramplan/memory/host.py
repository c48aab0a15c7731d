"""Host memory of one node: to load a model, to offload to the host, to save, and to merge adapters.

What the libraries themselves take (Python, PyTorch, CUDA and the data loader's workers: some GiB for each process) is
not known and not counted. Sources: transformers 5.23, accelerate 1.15, DeepSpeed 0.19, torch 2.13, safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramplan.dataclass import dataclass
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import Dtype
from vramplan.units import DTYPE_BYTES, GiB, ceil_div, format_bytes

SHARD_BYTES = 50 * 10**9
"""Largest file that save_pretrained writes (transformers 5.23, modeling_utils.py: max_shard_size)."""
MUCH_BYTES = 128 * GiB
"""A node that needs more than this is told about without being asked."""
USUAL_DTYPE: Dtype = "bf16"
"""Of published files, if nothing says another."""
ADAM_BYTES = 8
"""Two fp32 states for each weight."""


@dataclass(frozen=True, slots=True)
class HostTensors:
    """Tensors of one kind on the host of a node."""

    phase: str
    """load, train, save or merge."""
    what: str
    num_bytes: int
    """Bytes of all copies on the node."""
    copies: int
    """Number of processes that have one."""
    count: int
    """Elements of each copy."""
    source: str
    is_pinned: bool = False
    """Whether it is page-locked, which swapping does not help."""
    is_cache: bool = False
    """Whether it is the system's cache of a file, which it may drop."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory of one node. All sizes are bytes."""

    gpus_per_node: int
    tensors: tuple[HostTensors, ...]
    notes: tuple[str, ...]

    def phase_bytes(self) -> dict[str, int]:
        """Bytes of each phase, without files that the system caches. What training keeps is there in `save` too."""
        phases = dict.fromkeys(("load", "train", "save", "merge"), 0)
        for one in self.tensors:
            if not one.is_cache:
                phases[one.phase] += one.num_bytes
        phases["save"] += phases["train"] if phases["save"] else 0
        return phases

    @property
    def peak_bytes(self) -> int:
        """The most of any phase, in bytes."""
        return max(self.phase_bytes().values())

    @property
    def pinned_bytes(self) -> int:
        """Page-locked bytes while training."""
        return sum(one.num_bytes for one in self.tensors if one.is_pinned)


@dataclass(frozen=True, slots=True)
class OtherModel:
    """A model that is loaded beside the one that trains."""

    what: str
    """Its part in the job: teacher, reward model, value model."""
    num_parameters: int | None
    """Elements of its files; None if that is not known."""
    stored_dtype: str | None
    """Dtype of the published weights; None if it is not known."""
    dtype: str
    """Dtype that it is loaded in."""


def host_memory(
    job: Job,
    num_parameters: int,
    num_trainable: int,
    stored_dtype: str | None,
    others: Sequence[OtherModel] = (),
) -> HostMemory:
    """The host memory that a job needs on each node.

    Args:
        job: the job.
        num_parameters: parameters of the model itself.
        num_trainable: parameters that train.
        stored_dtype: dtype of the published weights; None if it is not known.
        others: the models that are loaded beside it.
    """
    gpus = job.num_gpus // job.num_nodes
    notes = ["what Python, PyTorch and the data loader's workers take is not counted: some GiB for each process"]
    if stored_dtype is None:
        notes.append(f"the dtype of the published files is not known; {USUAL_DTYPE} is assumed")
    notes += [f"the files of the {one.what} are not counted" for one in others if one.num_parameters is None]
    if job.strategy == "fsdp" and job.fsdp.version == 2 and job.method == "full":
        whole = (4 + ADAM_BYTES) * num_parameters
        notes.append(f"FULL_STATE_DICT gathers {format_bytes(whole)} on one process to save; FSDP 2 writes shards")
    if job.offload == "all":
        notes.append("PyTorch takes a power of two for each pinned tensor; that of single weights is not counted")
    if job.loads_reference and job.offload == "all":
        notes.append("the weights of the second model that wait on the host are not counted")
    if job.offload != "none" and "adam" not in job.optimizer:
        notes.append(f"the states of {job.optimizer} on the host are not known; Adam's are counted")
    if job.runs_verl:
        notes.append("what vLLM keeps on the host while it sleeps, and a reference that waits there, is not counted")
        if job.verl.critic is not None and job.verl.critic.model is not None:
            notes.append(f"the critic {job.verl.critic.model} is not counted")
    if job.openrlhf.sleeps:
        notes.append("the states that DeepSpeed moves to the host while models sleep are not counted")
    if job.openrlhf.critic is not None:
        notes.append(f"the critic {job.openrlhf.critic} is not counted")
    tensors = (
        *loading(job, num_parameters, stored_dtype or USUAL_DTYPE, gpus),
        *(tensors for one in others for tensors in loading_beside(one, gpus)),
        *offloaded(job, num_parameters, num_trainable, gpus),
        *waiting(job, num_parameters, num_trainable, gpus),
        *saving(job, num_parameters, num_trainable),
        *merging(job, num_parameters),
    )
    return HostMemory(gpus, tensors, tuple(notes))


def loading(job: Job, num_parameters: int, stored_dtype: str, gpus: int) -> Iterator[HostTensors]:
    """``from_pretrained``: safetensors are mapped, and copied by each process if the dtype changes."""
    files = num_parameters * DTYPE_BYTES[stored_dtype]
    mapped = "modeling_utils.py: safe_open maps the files, which the processes of a node share"
    what = f"{stored_dtype} files, cached by the system"
    yield HostTensors("load", what, files, 1, num_parameters, mapped, is_cache=True)
    if job.is_mapped or job.strategy == "zero3":  # weights go to the GPU, or to their owner, one by one
        return
    if stored_dtype != job.dtype:
        copies = 1 if job.strategy == "device_map" else gpus
        efficient = ", of each process without cpu_ram_efficient_loading" if job.strategy == "fsdp" else ""
        size = copies * num_parameters * DTYPE_BYTES[job.dtype]
        where = "core_model_loading.py: a copy in the new dtype"
        yield HostTensors("load", f"weights in {job.dtype}{efficient}", size, copies, num_parameters, where)


def loading_beside(model: OtherModel, gpus: int) -> Iterator[HostTensors]:
    """The same of a model beside the one that trains, which every process loads whole."""
    count, stored = model.num_parameters, model.stored_dtype or USUAL_DTYPE
    if count is None:
        return
    mapped = "modeling_utils.py: safe_open maps the files, which the processes of a node share"
    what = f"{model.what}: {stored} files, cached by the system"
    yield HostTensors("load", what, count * DTYPE_BYTES[stored], 1, count, mapped, is_cache=True)
    if stored != model.dtype:
        where = "core_model_loading.py: a copy in the new dtype"
        size = gpus * count * DTYPE_BYTES[model.dtype]
        yield HostTensors("load", f"{model.what} in {model.dtype}", size, gpus, count, where)


def offloaded(job: Job, num_parameters: int, num_trainable: int, gpus: int) -> Iterator[HostTensors]:
    """What the processes of a node keep on the host while they train (`offload`)."""
    if job.offload == "none":
        return
    groups = job.num_gpus // job.fsdp.replicas if job.strategy == "fsdp" else job.num_gpus
    own, all_own = ceil_div(num_trainable, groups), ceil_div(num_parameters, groups)
    size = DTYPE_BYTES[job.dtype]

    def shard(
        what: str, count: int, num_bytes: int, source: str, pinned: bool = True, flat: bool = False
    ) -> HostTensors:
        one = pinned_bytes(num_bytes) if pinned and flat else num_bytes
        return HostTensors("train", what, gpus * one, gpus, count, source, pinned)

    if job.strategy == "fsdp":
        where = "torch/distributed/fsdp: CPUOffload, CPUOffloadPolicy"
        widened = job.method == "full" and job.computed_dtype is not None  # accelerate shards in fp32
        width = 4 if widened else DTYPE_BYTES[job.trained_dtype]
        yield shard("trained weights", own, own * width, where)
        yield shard("gradients", own, own * width, where)
        yield shard("Adam's states", own, 2 * own * width, where, pinned=False)
        if job.method != "full":
            yield shard("frozen weights", all_own, base_bytes(job, all_own), where)
        return
    third = job.strategy == "zero3"
    where = f"deepspeed/runtime/zero/{'stage3.py' if third else 'stage_1_and_2.py'}"
    yield shard("weights in fp32", own, 4 * own, where, pinned=not third, flat=True)
    yield shard("gradients in fp32", own, 4 * own, where, flat=True)
    copied = f"gradients in {job.dtype}" if third else f"weights in {job.dtype}, to be copied back"
    yield shard(copied, own, size * own, where, flat=True)
    yield shard("Adam's states", own, ADAM_BYTES * own, "deepspeed/ops/adam/cpu_adam.py", pinned=False)
    if not third and job.gradient_accumulation_steps > 1:
        where = f"{where}: accumulated_grads_in_cpu"
        yield shard("gradients of earlier micro-batches", own, size * own, where)
    if job.offload == "all":
        where = "deepspeed/runtime/zero/partition_parameters.py: _partition_param"
        yield shard("weights", all_own, base_bytes(job, all_own), where)


def waiting(job: Job, num_parameters: int, num_trainable: int, gpus: int) -> Iterator[HostTensors]:
    """What verl's actor and critic keep on the host while they do not run (verl 0.7.1, utils/fsdp_utils.py).

    Neither offload_fsdp_model_to_cpu nor offload_fsdp_optimizer page-locks it.
    """
    shared = job.num_gpus // job.fsdp.replicas
    trained, rest = ceil_div(num_trainable, shared), ceil_div(num_parameters, shared)
    kept = [("the actor's", job.verl.param_offload, job.verl.optimizer_offload, job.dtype, trained, rest)]
    critic = job.verl.critic
    if critic is not None and critic.model is None:
        own = ceil_div(num_parameters, job.num_gpus // critic.replicas)
        kept.append(("the critic's", critic.param_offload, critic.optimizer_offload, critic.dtype, own, own))
    for whose, weights, states, dtype, updated, count in kept:
        width = DTYPE_BYTES[dtype]
        for what, does, number, size in (
            ("weights", weights, count, width),
            ("Adam's states", states, updated, 2 * width),
        ):
            if does:
                where = "verl/utils/fsdp_utils.py: param_offload, optimizer_offload"
                yield HostTensors("train", f"{whose} {what}", gpus * number * size, gpus, number, where)


def base_bytes(job: Job, num_parameters: int) -> int:
    """About the bytes of so many weights of the base model as it is stored: all linear layers quantized or none."""
    size = num_parameters * DTYPE_BYTES[job.dtype]
    return {"none": size, "nf4": size // 4, "int8": num_parameters}[job.quantize]


def pinned_bytes(num_bytes: int) -> int:
    """Bytes that PyTorch takes for a page-locked tensor: a power of two (ATen/core/CachingHostAllocator.h: roundSize).

    >>> pinned_bytes(5 << 30) >> 30
    8
    """
    return 1 << (num_bytes - 1).bit_length() if num_bytes else 0


def saving(job: Job, num_parameters: int, num_trainable: int) -> Iterator[HostTensors]:
    """A checkpoint on the process that writes it."""
    size = DTYPE_BYTES[job.dtype]
    if job.runs_verl:
        gpus, shared = job.num_gpus // job.num_nodes, job.num_gpus // job.fsdp.replicas
        where = "verl/utils/checkpoint/fsdp_checkpoint_manager.py: ShardedStateDictConfig(offload_to_cpu=True)"
        for what, count, width in (("weights", num_parameters, size), ("Adam's states", num_trainable, 2 * size)):
            own = ceil_div(count, shared)
            yield HostTensors("save", f"own parts of {what}", gpus * own * width, gpus, own, where)
        return
    if job.method != "full" and job.strategy != "zero3":
        width = DTYPE_BYTES[job.lora_dtype]
        yield HostTensors(
            "save", "adapters", num_trainable * width, 1, num_trainable, "peft/utils/save_and_load.py: adapters alone"
        )
        return
    if job.strategy == "zero3":
        yield HostTensors(
            "save",
            "the whole model, if stage3_gather_16bit_weights_on_model_save is on",
            num_parameters * size,
            1,
            num_parameters,
            "deepspeed/runtime/engine.py: _zero3_consolidated_16bit_state_dict",
        )
        return
    if job.strategy == "fsdp":
        if job.fsdp.version == 1:  # version 2 writes shards unless it is told otherwise
            where = "accelerate/utils/dataclasses.py: FULL_STATE_DICT, the default of FSDP 1"
            states = ADAM_BYTES * num_trainable
            yield HostTensors("save", "the whole model in fp32", 4 * num_parameters, 1, num_parameters, where)
            yield HostTensors("save", "Adam's states of the whole model", states, 1, num_trainable, where)
        return
    shard = min(num_parameters * size, SHARD_BYTES)
    where = "safetensors/torch.py: the tensors of a file are copied first"
    yield HostTensors("save", "one file of weights", shard, 1, shard // size, where)


def merging(job: Job, num_parameters: int) -> Iterator[HostTensors]:
    """``merge_and_unload`` on the CPU: the base model in its dtype; on the GPU nothing but the file that is written."""
    if job.method == "full":
        return
    size = num_parameters * DTYPE_BYTES[job.dtype]
    yield HostTensors(
        "merge",
        f"the base model in {job.dtype}, if adapters are merged on the CPU",
        size,
        1,
        num_parameters,
        "peft/tuners/lora/layer.py: merge changes each weight in place",
    )


__all__ = ["MUCH_BYTES", "HostMemory", "HostTensors", "host_memory", "offloaded", "pinned_bytes"]
