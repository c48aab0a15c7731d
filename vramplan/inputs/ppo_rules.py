"""What PPO cannot do, or what is not modelled of it: as LLaMA-Factory runs it, or TRL, which has a value model."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule


def is_ppo(job: Job) -> bool:
    """Whether LLaMA-Factory's CustomPPOTrainer or TRL's PPOTrainer runs the job."""
    return job.task == "ppo"


def is_llamafactory(job: Job) -> bool:
    """Whether it is LLaMA-Factory's."""
    return is_ppo(job) and job.value_model is None


def is_trl(job: Job) -> bool:
    """Whether it is TRL's."""
    return is_ppo(job) and job.value_model is not None


def adapts_values(job: Job) -> bool:
    """Whether the value model trains adapters, as the policy does."""
    return job.ppo_trainer == "ms_swift" and job.method != "full"


OF_VALUES = ("value_dtype", "rollout_batch_size", "ppo_trainer")
"""Settings that only TRL's has."""


def _alone(name: str) -> Rule:
    return Rule(
        lambda job: job.value_model is None and getattr(job, name) != Job.model_fields[name].default,
        IMPOSSIBLE,
        f"{name} has no meaning without {{value_model=MODEL}}",
    )


STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
"""Strategies under which the trainers with a value model were run."""
VALUE_RULES = (
    *map(_alone, OF_VALUES),
    Rule(
        lambda job: job.value_model is not None and not is_ppo(job),
        IMPOSSIBLE,
        "{value_model} has no meaning without {task=ppo}",
    ),
    Rule(
        lambda job: is_trl(job) and job.reward_adapters,
        IMPOSSIBLE,
        "reward_adapters with {value_model}: they are LLaMA-Factory's; TRL's PPOTrainer takes {reward_model=MODEL}",
    ),
    Rule(
        lambda job: is_trl(job) and job.reward_model is None,
        IMPOSSIBLE,
        "{task} with {value_model} needs a model that scores, as TRL's PPOTrainer does; give {reward_model=MODEL}",
    ),
    Rule(
        lambda job: is_trl(job) and job.checkpointing != "none",
        UNSUPPORTED,
        "{checkpointing} with {value_model} is not modelled: TRL's PPOTrainer takes gradient_checkpointing and never"
        " switches it on; use {checkpointing=none}",
    ),
    Rule(
        lambda job: is_trl(job) and (job.quantize != "none" or bool(job.fused_kernels)),
        UNSUPPORTED,
        "{quantize} or fused kernels with {value_model} are not modelled; use {quantize=none} and {fused_kernels=none}",
    ),
    Rule(
        lambda job: (
            is_trl(job) and job.num_gpus > 1 and not job.uses_deepspeed and job.reference_source == "adapters_off"
        ),
        IMPOSSIBLE,
        "{num_gpus} with {value_model} and adapters: TRL's PPOTrainer stops, as it asks DistributedDataParallel for the"
        " policy to switch them off; use {num_gpus=1}, or {reference=model}",
    ),
    Rule(
        lambda job: is_trl(job) and job.reference_source in ("precomputed", "none"),
        UNSUPPORTED,
        "{reference} with {task}: TRL's PPOTrainer computes the reference's log-probabilities; use {reference=model}",
    ),
)
PPO_RULES = (
    *VALUE_RULES,
    Rule(
        lambda job: job.reward_adapters and (not is_ppo(job) or job.method == "full"),
        IMPOSSIBLE,
        "reward_adapters has no meaning without {task=ppo} and {method=lora}: they score with the policy's weights",
    ),
    Rule(
        lambda job: job.reward_adapters and job.reward_model is not None,
        IMPOSSIBLE,
        "reward_adapters with {reward_model}: one of them scores",
    ),
    Rule(
        lambda job: is_ppo(job) and (job.prompt_length is None or job.prompt_length >= job.sequence_length),
        IMPOSSIBLE,
        "{task} needs the tokens of the prompt, less than {sequence_length} of a prompt with its completion: give"
        " {prompt_length=N} below that",
    ),
    Rule(
        lambda job: (
            is_llamafactory(job) and job.reference not in (None, "adapters_off" if job.method != "full" else "model")
        ),
        UNSUPPORTED,
        "{reference} with {task} is not modelled; leave it out for the model without adapters, or a second model with"
        " {method=full}",
    ),
    Rule(
        lambda job: is_llamafactory(job) and (job.strategy != "ddp" or job.offload != "none"),
        UNSUPPORTED,
        "{strategy} {offload} with {task} is not modelled; use {strategy=ddp} {offload=none}",
    ),
    Rule(
        lambda job: is_trl(job) and (job.strategy not in STRATEGIES or job.offload != "none"),
        UNSUPPORTED,
        "{strategy} {offload} with {task} is not modelled; use {strategy=zero3} {offload=none}",
    ),
    Rule(
        lambda job: is_llamafactory(job) and job.autocast == "none",
        UNSUPPORTED,
        "{autocast} with {task} is not modelled: LLaMA-Factory runs its forwards under autocast; use {autocast=bf16}",
    ),
    Rule(
        lambda job: is_ppo(job) and job.loss != "standard",
        UNSUPPORTED,
        "{loss} with {task} is not modelled: all logits are held; use {loss=standard}",
    ),
    Rule(
        lambda job: is_ppo(job) and job.generate_with != "transformers",
        UNSUPPORTED,
        "{generate_with} with {task} is not modelled: its trainers generate with {generate_with=transformers}",
    ),
    Rule(
        lambda job: is_ppo(job) and (job.loop != "trainer" or job.joins_samples or job.lengths is not None),
        UNSUPPORTED,
        "{task} is modelled of samples of one length; use {loop=trainer}, {batches=padded} and no {lengths}",
    ),
    Rule(
        lambda job: is_ppo(job) and job.pictures > 0,
        UNSUPPORTED,
        "{task} with images is not modelled yet; use {images=0}",
    ),
)
