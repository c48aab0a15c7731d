"""The changes that save memory, cheapest first, and what each does to a job when it is estimated again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from math import ceil, gcd
from typing import Any

from vramplan.analytic.architectures.lookup import is_described
from vramplan.analytic.rollout.vllm_share import least_share, start_doubts
from vramplan.analytic.supported import fuses_head
from vramplan.dataclass import dataclass
from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS, GENERATING, ROLLOUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.inputs.task_rules import OF_FRAMEWORKS, PREFERENCE
from vramplan.memory.calibration import plannable_bytes, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.memory.optimizers import modelled
from vramplan.memory.vllm import requested_bytes
from vramplan.planner.estimate_cache import EstimateCache, Estimator
from vramplan.planner.search_result import FREE, LeverEffect
from vramplan.units import GiB

NEVER: tuple[Mapping[str, Any], ...] = ({"optimizer": "sgd"},)
"""Changes that need another recipe: SGD's learning rates are orders of magnitude away from Adam's."""
SYNC_PARTS = 16
"""Parts in which ms-swift's examples send weights to vLLM (examples/train/grpo: move_model_batches)."""
ADAPTERS = "adapters instead of all weights"


@dataclass(frozen=True, slots=True)
class Lever:
    """A change to a job, or of its GPU, that may save memory."""

    change: str
    """What to set, in the words of the command line."""
    why: str
    cost: str
    update: Mapping[str, Any] = field(default_factory=dict)
    """The same as fields of the job; the field that it is about comes first."""
    card: Gpu | None = None
    milder: tuple[Mapping[str, Any], ...] = ()
    """Updates that change less and save less, the mildest first."""

    @property
    def first(self) -> Mapping[str, Any]:
        """The field that it is about, with its value."""
        return {self.about: self.update[self.about]} if self.about else {}

    @property
    def about(self) -> str:
        """The field of the job that it is about; empty for another GPU."""
        return "" if self.card is not None else next(iter(self.update), "")

    @property
    def opens_others(self) -> bool:
        """Whether other changes apply once it is made: quantization of adapters, offloading by ZeRO-3."""
        return self.about in ("strategy", "method")

    @property
    def keeps_result(self) -> bool:
        """Whether the trained model comes out the same, but for rounding."""
        if "strategy" in self.update:
            return True
        batch = {"micro_batch_size", "gradient_accumulation_steps", "eval_batch_size"}
        same = {
            "checkpointing", "loss", "attention", "offload", "reference", "vllm_share", "verl", "steps_per_generation",
            "vllm_sync_parts", "rollout_offload", "rollout_batch_size", "offloads_activations", *batch,
        }  # fmt: skip
        # the fused AdamW is offered instead of AdamW's other forms alone
        return self.update.keys() <= same or self.update == {"optimizer": "adamw_torch_fused"}


Levers = Callable[[ModelSpec, Job, Gpu, int], list[Lever]]
"""(model, job, GPU, bytes that it needs) -> the changes to try, cheapest first."""


def apply_levers(
    spec: ModelSpec, job: Job, gpu: Gpu, estimator: Estimator, levers: Sequence[Lever]
) -> list[LeverEffect]:
    """What each change saves of a job as it is, and whether it fits then.

    Raises:
        VramplanError: whatever the estimator raises of the job itself.
    """
    estimates = EstimateCache(spec, job, gpu, estimator)
    smallest = estimates(job.micro_batch_size, job.gradient_accumulation_steps)
    return helpful_effects(estimates, smallest, levers)


MOST_GPUS = 2
"""Larger GPUs that are named."""
LEAST_SAVED_BYTES = GiB // 20
"""What a change that is not enough has to save to be named: less is 0.0 GiB in an answer."""


def helpful_effects(
    estimates: EstimateCache,
    smallest: Estimate,
    levers: Sequence[Lever],
    next_pair: tuple[int, int] | None = None,
    every_pair: Sequence[tuple[int, int]] = (),
) -> list[LeverEffect]:
    """The effects of the changes that help.

    Without `next_pair` nothing fits: all that save memory at the pair that needs least now, or if a change does not fit
    there at the smallest micro-batch; another strategy also at the largest, as accumulation costs each strategy another
    amount. With it, the free changes that make that next larger (micro-batch, accumulation) pair fit.
    """
    first = next_pair or (smallest.micro_batch_size, smallest.gradient_accumulation_steps)
    effects: list[LeverEffect] = []
    for lever in levers:
        if next_pair and lever.cost != FREE:
            continue
        if lever.card is not None and sum(not effect.update for effect in effects) >= MOST_GPUS:
            continue
        changed = estimates.changed(lever.update, lever.card)
        others = () if next_pair or not lever.update else every_pair[:1]
        others = (*others, *every_pair[-1:]) if "strategy" in lever.update else others
        try:
            micro, steps = next((pair for pair in dict.fromkeys((first, *others)) if changed.fits(*pair)), first)
            fits = changed.fits(micro, steps)
        except VramplanError:  # a change that this model or GPU does not have
            continue
        if (next_pair or (lever.card is not None and estimates.job.lengths is not None)) and not fits:
            continue
        estimate = changed(micro, steps)
        need_bytes, doubts = estimate.device_total_bytes, start_doubts(estimate.notes)
        saved_bytes = max(0, estimates(*first).device_total_bytes - need_bytes)
        if lever.card is None and saved_bytes < (1 if fits else LEAST_SAVED_BYTES):
            continue
        update = lever.update if lever.card is None else {}
        effect = LeverEffect(lever.change, lever.why, lever.cost, saved_bytes, fits, micro, need_bytes, update)
        effects.append(replace(effect, doubts=doubts))
    return effects


PASS = "a pass before training"
"""The cost of log-probabilities that are computed once, for all samples."""
COSTS = (FREE, PASS, "communication", "about a third more time", "time, host RAM", "accuracy", "accuracy, time")
"""Costs that leave the training as it is, the least first; those of another recipe come behind them."""


def cheapest_first(effects: Sequence[LeverEffect]) -> list[LeverEffect]:
    """Changes in the order of their costs, larger GPUs last; those of the same cost as they were."""
    return sorted(effects, key=lambda effect: (not effect.update, cost_rank(effect.cost)))


def cost_rank(cost: str) -> int:
    """The place of a cost among all, 0 for none; of several together, that of the highest."""
    if cost in COSTS:
        return COSTS.index(cost)
    known = {part: rank for rank, text in reversed([*enumerate(COSTS)]) for part in text.split(", ")}
    return max(known.get(part, len(COSTS)) for part in cost.split(", "))


def memory_levers(spec: ModelSpec, job: Job, gpu: Gpu, need_bytes: int) -> list[Lever]:
    """Every change that applies to a job that needs `need_bytes`, ordered by what it costs."""
    levers = []

    def lever(change: str, why: str, cost: str, **update: object) -> None:
        levers.append(Lever(change, why, cost, update))

    optimizer = modelled(job.optimizer)
    eight_bit = optimizer.eight_bit if optimizer is not None else ""
    if optimizer is not None and eight_bit and optimizer.name != "adamw_torch_fused":
        lever(
            "--optimizer adamw_torch_fused",
            "the fused kernel needs no temporary copy of the weights",
            FREE,
            optimizer="adamw_torch_fused",
        )
    if job.loss in ("standard", "sliced", "sliced_fp32", "sections", "liger_cross_entropy", "log_probs") and fuses_head(
        spec
    ):
        lever("--loss liger", "logits never exist as a whole, nor in fp32", FREE, loss="liger")
    expands = not job.expandable_segments and job.generate_with != "vllm_sleep"  # which does not run with them
    if expands and gpu.vendor == "NVIDIA" and gpu.platform == "linux":
        lever(
            EXPANDABLE_SEGMENTS,
            "PyTorch's cached blocks are joined, not kept apart",
            FREE,
            expandable_segments=True,
        )
    if job.batches == "padded" and job.task not in GENERATING:  # whose trainers always pad
        lever("--batches unpadded", "packing or length grouping needs no mask", FREE, batches="unpadded")
    if job.method == "lora" and job.lora_dropout > 0:
        lever("--lora-dropout 0", "dropout keeps a mask and a copy of every adapter's input", FREE, lora_dropout=0.0)
    if job.attention == "eager":
        lever("--attention sdpa", "scores of all pairs of tokens are never stored", FREE, attention="sdpa")
    if job.dtype == "fp32" and gpu.supports("bf16"):
        cast = "none" if job.runs_verl else "bf16"  # verl's reader says none, and its actor casts in any case
        lever(
            f"--dtype bf16 --autocast {cast}",
            "half the bytes of weights and states",
            "accuracy",
            dtype="bf16",
            autocast=cast,
            **({"lora_dtype": "bf16"} if job.runs_verl and job.method != "full" else {}),
        )
    # under FSDP TRL loads the second model for the pass (trl 1.16, dpo_trainer.py); KTO before 1.4 stops under ZeRO-3
    precomputes = job.task == "dpo" or (job.task == "kto" and job.strategy != "zero3")
    if precomputes and job.loads_reference and job.strategy != "fsdp":
        lever("--reference precomputed", "no second model beside the one that trains", PASS, reference="precomputed")
    if job.checkpointing == "none":
        lever("--checkpointing full", "layers keep their input only", "about a third more time", checkpointing="full")
    elif job.layers_of == "torchtune" and job.task is None and not job.offloads_activations:
        why = "inputs of layers wait in host memory"
        lever("enable_activation_offloading True", why, "time, host RAM", offloads_activations=True)
    half = "bf16" if gpu.supports("bf16") else "fp16"
    if job.method == "full":
        smaller = (("adafactor", "states of a row and a column"), ("sgd", "no optimizer states"))
        eight = (
            (eight_bit, "states of one byte instead of the weights' dtype"),
            ("paged_adamw_8bit", "the same, in memory that the driver moves to the host if it has to"),
        )
        for name, why in (*(eight if eight_bit else ()), *smaller):
            if job.optimizer != name:
                lever(f"--optimizer {name}", why, "convergence", optimizer=name)
        lever(
            "--method lora",
            "gradients and states for adapters only",
            ADAPTERS,
            method="lora",
            **({"reference": "adapters_off"} if job.reference == "model" else {}),
            **(_sharded_adapters(job, half) if job.strategy == "zero3" else {}),
            **({"dtype": half, "autocast": half} if _halves(job, gpu, half) else {}),
        )
    if job.method == "lora" and job.quantize == "none" and is_described(spec):
        lever("--quantize nf4", "frozen linear layers in four bits", "accuracy, time", quantize="nf4")
    if job.num_gpus > 1 and job.strategy in ("ddp", "zero0", "zero1", "zero2") and job.quantize == "none":
        if job.strategy == "ddp":
            lever("--strategy fsdp", "each GPU holds a part of the weights", "communication", strategy="fsdp")
        stored = job.dtype if job.autocast == "none" else job.autocast
        lever(
            "--strategy zero3",
            "each GPU holds a part of the weights",
            "communication",
            strategy="zero3",
            dtype=stored,
            autocast="none",
            **(_sharded_adapters(job, half) if job.method != "full" else {}),
        )
    if job.strategy in ("zero2", "zero3") and job.offload == "none" and job.method == "full":
        lever("--offload optimizer", "the host keeps states and updates weights", "time, host RAM", offload="optimizer")
    if job.strategy == "zero3" and job.offload in ("none", "optimizer") and job.method == "full":
        lever("--offload all", "the host keeps weights and states too", "time, host RAM", offload="all")
    at_once = job.num_generations // gcd(job.num_generations, job.data_parallel)  # as many as any micro-batch may have
    if job.task in ROLLOUTS and job.generate_with == "transformers" and job.steps_per_generation != at_once:
        lever(
            f"--steps-per-generation {at_once}",
            "fewer completions are generated at a time",
            "time",
            steps_per_generation=at_once,
        )
    if job.value_model is not None and job.rollout_batch_size > job.micro_batch_size:
        lever(
            f"--rollout-batch-size {job.micro_batch_size}",
            "fewer completions are generated and scored at a time",
            "time",
            rollout_batch_size=job.micro_batch_size,
        )
    if is_colocated(job) and job.generate_with == "vllm" and not job.expandable_segments:
        lever(
            "--generate-with vllm_sleep",
            f"{job.verl.engine_name} gives its memory back while the model trains",
            "time",
            generate_with="vllm_sleep",
        )
    if job.vllm_sync_parts is not None and job.vllm_sync_parts < SYNC_PARTS and job.strategy == "zero3":
        lever(
            f"move_model_batches {SYNC_PARTS}",
            "fewer weights are gathered at a time for vLLM",
            "time",
            vllm_sync_parts=SYNC_PARTS,
        )
    if job.vllm_sync_parts is not None and is_colocated(job) and job.rollout_offload != "all":
        lever(
            "offload_model true, offload_optimizer true",
            "they wait in host memory while vLLM generates",
            "time, host RAM",
            rollout_offload="all",
        )
    if job.runs_verl and job.verl.engine == "sglang" and not job.verl.eager:
        eager = job.verl.model_copy(update={"eager": True})
        lever("enforce_eager", "SGLang keeps no CUDA graphs while the model trains", "time", verl=eager)
    for change, verl in job.verl.offloads().items() if job.runs_verl else ():
        why = f"it waits in host memory while {verl.engine_name} generates"
        lever(change, why, "time, host RAM", verl=verl)
    if job.runs_verl and job.batches != "packed" and (fewer := job.verl.fewer_scored(job.sequence_length)):
        *milder_batches, least = ({"verl": verl} for verl in fewer)
        why = "fewer completions are scored at a time"
        levers.append(Lever("fewer samples for each scoring", why, "time", least, milder=tuple(milder_batches)))
    shares = _smaller_shares(spec, job, gpu, need_bytes)
    if shares:
        *milder, share = ({"vllm_share": share} for share in shares)
        why = f"{job.verl.engine_name} keeps fewer tokens at a time"
        levers.append(Lever(f"--vllm-share {shares[-1]:g}", why, "time", share, milder=tuple(milder)))
    if job.sequence_length >= 1024:
        shorter = job.sequence_length // 2
        lever(
            f"--seq-len {shorter}", "activations and logits shrink with the tokens", "context", sequence_length=shorter
        )
    for other in _larger(gpu, job, need_bytes):
        size = f"{other.total_mib / 1024:.0f} GiB"
        update = {"dtype": "bf16", "autocast": "bf16"} if _is_fallback(job, gpu) and other.supports("bf16") else {}
        levers.append(Lever(f"--gpu {other.name}", size, "a larger GPU", update, card=other))
    return levers


def _sharded_adapters(job: Job, half: str) -> dict[str, Any]:
    """What adapters of a preference or reinforcement training are under ZeRO-3 (job_defaults.py)."""
    if job.task not in (*PREFERENCE, *ROLLOUTS):
        return {}
    cast = {} if job.loss in OF_FRAMEWORKS else {"lora_dtype": half}
    return {"reentrant": job.checkpointing == "full", **cast}


def _smaller_shares(spec: ModelSpec, job: Job, gpu: Gpu, need_bytes: int) -> list[float]:
    """Smaller shares for vLLM, down to the first with which a job of `need_bytes` fits, or the last that vLLM needs.

    The need falls with the share where vLLM is awake at the peak; elsewhere the estimate shows that it does not help.
    """
    if not is_colocated(job) or need_bytes <= plannable_bytes(job, gpu) or not is_described(spec):
        return []
    shares = []
    for hundredths in range(ceil(100 * job.vllm_share) - 1, least_share(spec, job, gpu) - 1, -1):
        smaller = job.model_copy(update={"vllm_share": hundredths / 100})
        shares.append(smaller.vllm_share)
        saved_bytes = requested_bytes(job, gpu) - requested_bytes(smaller, gpu)
        if need_bytes - saved_bytes <= plannable_bytes(smaller, gpu):
            break
    return shares


USUAL = (
    "rtx3060-12gb", "rtx4060ti-16gb", "rtx5070ti", "rtx3090", "rtx4090", "rtx5090", "rtxa6000", "rtx6000-ada", "l40s",
    "rtxpro-6000-blackwell",
)  # fmt: skip
DATACENTER = ("a100-40gb-sxm", "a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200", "b300", "mi300x", "mi325x")
"""Cards that people can buy or rent; the others of the catalogue are not proposed."""


def _halves(job: Job, gpu: Gpu, half: str) -> bool:
    """Whether adapters want other dtypes than the whole model has."""
    stays = job.strategy.startswith("zero") or (job.dtype == "fp32" and not _is_fallback(job, gpu))
    return not stays and (job.dtype, job.autocast) != (half, half)


def _is_fallback(job: Job, gpu: Gpu) -> bool:
    """Whether the dtypes are those that stand in for bf16 on a GPU without it; elsewhere bf16 is the default again."""
    return not gpu.supports("bf16") and job.autocast == "fp16"


def _larger(gpu: Gpu, job: Job, need_bytes: int) -> list[Gpu]:
    """The two smallest usual GPUs of the same maker that hold what the job needs."""
    usual = (with_margin(find_gpu(name), gpu.margin_confidence) for name in (*USUAL, *DATACENTER))
    fitting = [
        other
        for other in usual
        if other.vendor == gpu.vendor
        and round(other.total_mib / 1024) > round(gpu.total_mib / 1024)
        and plannable_bytes(job, other) > need_bytes
        and (job.dtype == "fp32" or other.supports(job.dtype))
    ]
    # where lengths vary, PyTorch caches less on a fuller GPU: more are tried, and those that fit are named
    return sorted(fitting, key=lambda other: other.cuda_total_bytes)[: 2 if job.lengths is None else 6]
