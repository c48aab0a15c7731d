"""What reinforcement learning (GRPO, RLOO) cannot do, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS, Loss
from vramplan.inputs.openrlhf import OpenRlhf
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule
from vramplan.inputs.task_rules import OF_SWIFT
from vramplan.inputs.verl import Verl

OF_VLLM = ("vllm_share", "vllm_max_length", "vllm_tensor_parallel")
"""Settings of vLLM on the GPUs that train."""
ALONE = (
    "num_generations", "steps_per_generation", "num_iterations", "generate_with", *OF_VLLM,
    "vllm_sync_parts", "rollout_offload", "entropy_graph",
)  # fmt: skip
"""Settings that only GRPO and RLOO have."""
NO_REWARDS: tuple[Loss, ...] = (*OF_SWIFT, "log_probs")
"""Losses of trainers whose reward model is not modelled."""
LOSSES: dict[str, tuple[Loss, ...]] = {
    "grpo": (
        "standard", "divided_in_place", "chunked", "liger", "logits_to_keep", "liger_logits_to_keep", "log_probs",
        "kept_log_probs", "axolotl_log_probs",
    ),
    "rloo": ("standard", "divided_in_place", "chunked"),
    "gkd": ("logits_to_keep",),
}  # fmt: skip


def generates(job: Job) -> bool:
    """Whether completions of a whole generation are made at once: by GRPO's and RLOO's trainers, by ms-swift's GKD."""
    return job.task in ROLLOUTS or (job.task == "gkd" and job.loss == "logits_to_keep" and job.generated_by != "none")


def is_colocated(job: Job) -> bool:
    """Whether vLLM shares the GPUs of the training run."""
    return generates(job) and job.generate_with in ("vllm", "vllm_sleep")


def offloads_of_verl(job: Job) -> tuple[str, ...]:
    """What verl may offload for good: all, by ``offload_policy`` of FSDP 2."""
    return ("none", "all") if job.fsdp.version == 2 else ("none",)


def _waits_in_swift(job: Job) -> bool:
    """Whether weights in host memory go to vLLM by ms-swift's trainer of GRPO."""
    return job.task == "grpo" and job.loss == "logits_to_keep" and job.generate_with != "transformers"


def _alone(name: str) -> Rule:
    return Rule(
        lambda job: name in job.model_fields_set and not generates(job) and getattr(job, name) != _default(name),
        IMPOSSIBLE,
        f"{{{name}}} has no meaning without {{task=grpo}} or rloo",
    )


def _of_vllm(name: str) -> Rule:
    return Rule(
        lambda job: generates(job) and getattr(job, name) != _default(name) and not is_colocated(job),
        IMPOSSIBLE,
        f"{{{name}}} has no meaning with {{generate_with}}; give {{generate_with=vllm}} or vllm_sleep",
    )


def _default(name: str) -> object:
    return Job.model_fields[name].default


ROLLOUT_RULES = (
    *map(_alone, ALONE),
    Rule(
        lambda job: generates(job) and job.num_generations < 2 and not job.runs_own_actor and job.loss not in OF_SWIFT,
        IMPOSSIBLE,
        "{num_generations} with {task}: TRL compares completions of a prompt and needs at least 2",
    ),
    Rule(
        lambda job: (
            generates(job)
            and (
                (job.prompt_length is None and not job.runs_openrlhf) or (job.prompt_length or 0) >= job.sequence_length
            )
        ),
        IMPOSSIBLE,
        "{task} needs the tokens of the prompt, less than {sequence_length} of a prompt with its completion: give"
        " {prompt_length=N} below that",
    ),
    Rule(
        lambda job: generates(job) and job.reference == "precomputed",
        IMPOSSIBLE,
        "{reference} with {task}: completions are generated while the model trains; use {reference=model}",
    ),
    Rule(
        lambda job: is_colocated(job) and job.processes % job.vllm_tensor_parallel > 0,
        IMPOSSIBLE,
        "{vllm_tensor_parallel} does not divide the number of GPUs, which TRL requires; {num_gpus} is what there is",
    ),
    Rule(
        lambda job: job.vllm_weights == "shared" and not is_colocated(job),
        IMPOSSIBLE,
        "{vllm_weights} has no meaning without {task=grpo} or rloo and {generate_with=vllm} or vllm_sleep",
    ),
    Rule(
        lambda job: is_colocated(job) and job.vllm_weights == "shared" and job.method == "full",
        IMPOSSIBLE,
        "{vllm_weights} with {method}: only weights that do not train are vLLM's too; use {vllm_weights=own}",
    ),
    Rule(
        lambda job: is_colocated(job) and job.vllm_weights == "shared" and (job.strategy != "ddp" or job.num_gpus > 1),
        UNSUPPORTED,
        "{vllm_weights} on several GPUs is not modelled; use {num_gpus=1}",
    ),
    Rule(
        lambda job: generates(job) and job.rollout_offload != "none" and not is_colocated(job),
        IMPOSSIBLE,
        "{rollout_offload} has no meaning with {generate_with}; give {generate_with=vllm_sleep}",
    ),
    Rule(
        lambda job: (
            (job.rollout_offload != "none" or job.vllm_sync_parts is not None)
            and (job.task not in ("grpo", "gkd") or job.loss not in ("standard", *OF_SWIFT))
        ),
        IMPOSSIBLE,
        "rollout_offload and vllm_sync_parts are ms-swift's, whose GRPO has {loss=logits_to_keep}, or {loss=standard}"
        " before 4.4; leave them out",
    ),
    Rule(
        lambda job: (
            is_colocated(job)
            and job.rollout_offload != "none"
            and (job.strategy in ("zero0", "fsdp", "device_map") or job.quantize != "none")
        ),
        UNSUPPORTED,
        "{rollout_offload} with {strategy} and {quantize} is not modelled; use {rollout_offload=none}",
    ),
    Rule(
        lambda job: job.entropy_graph and generates(job) and job.loss != "logits_to_keep",
        UNSUPPORTED,
        "{entropy_graph} with {loss} is not modelled; use {loss=logits_to_keep}, which ms-swift computes",
    ),
    Rule(
        lambda job: (
            is_colocated(job)
            and job.generate_with == "vllm_sleep"
            and job.expandable_segments
            and job.vllm_sync_parts is None  # ms-swift switches them off while vLLM is awake (set_expandable_segments)
            and not job.runs_verl  # which switches them off while vLLM is awake
        ),
        IMPOSSIBLE,
        "{generate_with} with {expandable_segments}: vLLM's sleep mode does not run with expandable segments; use"
        " {expandable_segments=false}",
    ),
    Rule(
        lambda job: is_colocated(job) and job.quantize == "int8",
        IMPOSSIBLE,
        "{quantize} with {generate_with}: vLLM does not quantize to 8 bits while it loads (TRL refuses it); use"
        " {quantize=nf4}",
    ),
    Rule(
        lambda job: job.reward_model is not None and job.task not in (*ROLLOUTS, "ppo"),
        IMPOSSIBLE,
        "{reward_model} has no meaning without {task=grpo}, rloo or ppo",
    ),
    Rule(
        lambda job: job.reward_dtype is not None and job.reward_model is None,
        IMPOSSIBLE,
        "reward_dtype has no meaning without {reward_model}",
    ),
    Rule(
        lambda job: job.reward_model is not None and (job.loss in NO_REWARDS or job.rollout_offload != "none"),
        UNSUPPORTED,
        "{reward_model} with {loss} and {rollout_offload} is not modelled; use TRL's {loss=chunked} and"
        " {rollout_offload=none}, or leave it out for the policy alone",
    ),
    Rule(
        lambda job: generates(job) and job.loss not in LOSSES[str(job.task)],
        UNSUPPORTED,
        "{loss} with {task} is not modelled; use {loss=chunked}, the fused head of TRL 1.15 and later, or"
        " {loss=standard}, whole logits as in TRL up to 1.13 (divided_in_place from 1.0 to 1.9)",
    ),
    Rule(
        lambda job: (
            generates(job) and job.loss in ("liger", "liger_logits_to_keep") and job.strategy in ("fsdp", "zero3")
        ),
        UNSUPPORTED,
        "{loss} with {task} under {strategy} was not compared with a run of its trainer; use {strategy=zero2}, or"
        " {loss=chunked}",
    ),
    Rule(
        lambda job: generates(job) and job.joins_samples and not job.runs_own_actor and job.loss != "logits_to_keep",
        UNSUPPORTED,
        "{batches} with {task}: TRL pads completions; use {batches=padded}, or {loss=logits_to_keep} for ms-swift's"
        " padding_free",
    ),
    Rule(
        lambda job: generates(job) and job.lengths is not None,
        UNSUPPORTED,
        "samples of several lengths with {task} are not modelled; give {sequence_length} of the longest",
    ),
    *map(_of_vllm, OF_VLLM),
    Rule(
        lambda job: (
            is_colocated(job) and 0 < (job.vllm_max_length or 0) < job.sequence_length and job.batches != "packed"
        ),
        IMPOSSIBLE,
        "{vllm_max_length} is shorter than {sequence_length}: vLLM takes no longer text, a prompt with its completion",
    ),
    Rule(
        lambda job: generates(job) and job.loop == "plain" and not job.runs_own_actor,
        UNSUPPORTED,
        "{loop} with {task}: TRL's trainer is modelled; use {loop=trainer}",
    ),
    Rule(
        lambda job: generates(job) and job.strategy == "device_map",
        UNSUPPORTED,
        "{strategy} with {task} is not modelled; use {strategy=ddp}",
    ),
    Rule(
        lambda job: generates(job) and job.strategy == "fsdp" and job.fsdp.version == 1 and not job.runs_verl,
        UNSUPPORTED,
        "{strategy} version 1 with {task}: TRL's GRPO and RLOO stop as they send weights to vLLM (Non-root FSDP"
        " instance's `_is_root`), and generation by transformers is not modelled; use fsdp version 2, or"
        " {strategy=zero3}",
    ),
    Rule(
        lambda job: generates(job) and job.offload == "all" and not job.runs_verl and not _waits_in_swift(job),
        UNSUPPORTED,
        "{offload} with {task} is modelled in ms-swift alone, with vLLM; use {offload=optimizer}",
    ),
    Rule(
        lambda job: job.runs_verl and (job.loop != "plain" or job.strategy != "fsdp"),
        UNSUPPORTED,
        "{loss} with {task} is verl's actor under FSDP alone; use {strategy=fsdp} {loop=plain}",
    ),
    Rule(
        lambda job: job.runs_verl and (job.generate_with == "transformers" or job.offload not in offloads_of_verl(job)),
        UNSUPPORTED,
        "{loss} with {task} is verl's actor with vLLM; use {generate_with=vllm_sleep} {offload=none}",
    ),
    Rule(
        lambda job: (
            job.runs_verl
            and (job.batches not in ("unpadded", "packed", "padded") or job.quantize != "none" or job.lora_dropout > 0)
        ),
        UNSUPPORTED,
        "{loss} with {task} is verl's actor, modelled without quantization and dropout; use {batches=unpadded}"
        " {quantize=none} {lora_dropout=0}",
    ),
    Rule(
        lambda job: job.runs_verl and job.fsdp.version == 2 and job.num_gpus == 1,
        UNSUPPORTED,
        "{loss} with {task} under FSDP 2 is modelled for several GPUs; use fsdp version 1",
    ),
    Rule(
        lambda job: job.runs_verl and job.verl.fused_head is not None and job.batches == "padded",
        UNSUPPORTED,
        "{batches} with a fused head of verl's is not modelled; use {batches=unpadded}",
    ),
    Rule(
        lambda job: any(job.num_gpus % gpus for gpus in job.verl.sharing),
        IMPOSSIBLE,
        "verl: sequence_parallel does not divide {num_gpus}",
    ),
    Rule(
        lambda job: job.batches not in ("unpadded", "packed") and job.verl.sharing != (),
        IMPOSSIBLE,
        "verl: sequence_parallel with {batches} stops verl; use {batches=unpadded}",
    ),
    Rule(
        lambda job: job.verl.samples is not None and job.batches != "packed",
        IMPOSSIBLE,
        "verl: samples has no meaning with {batches}: its micro-batches say how many; use {batches=packed}",
    ),
    Rule(
        lambda job: job.runs_own_actor and (job.steps_per_generation is not None or job.num_iterations != 1),
        IMPOSSIBLE,
        "steps_per_generation and num_iterations have no meaning with {loss}: it generates once for all updates",
    ),
    Rule(
        lambda job: job.openrlhf != OpenRlhf() and not job.runs_openrlhf,
        IMPOSSIBLE,
        "openrlhf has no meaning without {task=grpo} and {loss=kept_log_probs}",
    ),
    Rule(
        lambda job: job.runs_openrlhf and not job.strategy.startswith("zero"),
        UNSUPPORTED,
        "{strategy} with {loss} is not modelled: OpenRLHF runs DeepSpeed; use {strategy=zero2}",
    ),
    Rule(
        lambda job: job.runs_openrlhf and (job.generate_with == "transformers" or job.quantize != "none"),
        UNSUPPORTED,
        "{generate_with} {quantize} with {loss} is not modelled: OpenRLHF generates by vLLM; use"
        " {generate_with=vllm_sleep} {quantize=none}",
    ),
    Rule(
        lambda job: job.runs_openrlhf and job.reference not in (None, "none", "model"),
        UNSUPPORTED,
        "{reference} with {loss} is not modelled: OpenRLHF's reference is a model of its own; use {reference=model}",
    ),
    Rule(
        lambda job: job.openrlhf.trains == "critic" and (is_colocated(job) or job.reference not in (None, "none")),
        UNSUPPORTED,
        "{generate_with} {reference} beside a critic alone is not modelled; use {generate_with=vllm_server} without a"
        " reference, or openrlhf: critic for the actor's GPUs",
    ),
    Rule(
        lambda job: (
            job.openrlhf.trains == "nothing"
            and (is_colocated(job) or (job.reference == "model") == (job.reward_model is not None))
        ),
        IMPOSSIBLE,
        "openrlhf: trains nothing means GPUs of a reference or of a reward model alone: give {reference=model} or a"
        " reward_model, and {generate_with=vllm_server}",
    ),
    Rule(
        lambda job: (
            not job.runs_verl
            and job.verl
            != (
                Verl(
                    logits=job.verl.logits,
                    sequence_parallel=job.verl.sequence_parallel,
                    samples=job.verl.samples,
                )
                if job.loss == "log_probs"  # supervised
                else Verl()
            )
        ),
        IMPOSSIBLE,
        "verl has no meaning without {task=grpo} and {loss=log_probs}",
    ),
    Rule(
        lambda job: (
            job.runs_verl
            and job.batches != "packed"
            and bool(job.verl.scored_tokens)
            and (job.verl.scored_tokens or 0) % job.sequence_length > 0
        ),
        IMPOSSIBLE,
        "verl: scored_tokens are those of whole samples of {sequence_length}",
    ),
)
