"""What PPO, as LLaMA-Factory runs it, cannot do, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule


def is_ppo(job: Job) -> bool:
    """Whether LLaMA-Factory's CustomPPOTrainer runs the job."""
    return job.task == "ppo"


PPO_RULES = (
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
        " {prompt_length=512}, for example",
    ),
    Rule(
        lambda job: is_ppo(job) and job.reference not in (None, "adapters_off" if job.method != "full" else "model"),
        UNSUPPORTED,
        "{reference} with {task} is not modelled; leave it out for the model without adapters, or a second model with"
        " {method=full}",
    ),
    Rule(
        lambda job: is_ppo(job) and (job.strategy != "ddp" or job.offload != "none"),
        UNSUPPORTED,
        "{strategy} {offload} with {task} is not modelled; use {strategy=ddp} {offload=none}",
    ),
    Rule(
        lambda job: is_ppo(job) and job.autocast == "none",
        UNSUPPORTED,
        "{autocast} with {task} is not modelled: LLaMA-Factory runs its forwards under autocast; use {autocast=bf16}",
    ),
    Rule(
        lambda job: is_ppo(job) and job.loss != "standard",
        UNSUPPORTED,
        "{loss} with {task} is not modelled: LLaMA-Factory holds all logits; use {loss=standard}",
    ),
    Rule(
        lambda job: is_ppo(job) and job.generate_with != "transformers",
        UNSUPPORTED,
        "{generate_with} with {task} is not modelled: LLaMA-Factory generates with {generate_with=transformers}",
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
