"""What a preference task cannot do, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import ROLLOUTS, Job, Loss
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule

REFERRING = ("dpo", "kto", *ROLLOUTS)
"""Tasks with a reference."""
PREFERENCE = ("dpo", "kto", "orpo", "cpo", "simpo", "reward")
"""Tasks of TRL's preference trainers."""
PAIRS = ("dpo", "orpo", "cpo", "simpo", "reward")
"""Tasks whose samples are pairs of a chosen and a rejected answer."""
TRL_TASKS = (*PREFERENCE, *ROLLOUTS)
"""Tasks of TRL's trainers."""
SCORING = ("dpo", "kto", "orpo", "cpo", "simpo")
"""Those that compute log-probabilities of answers."""
CONCATENATED: tuple[Loss, ...] = ("concatenated_states", "concatenated")
"""Those of TRL before 0.29."""
OF_FRAMEWORKS: dict[Loss, str] = {"log_softmax": "LLaMA-Factory", "logits_to_keep": "ms-swift"}
"""Those of frameworks' own trainers, and the frameworks."""
PREFERENCE_LOSSES: dict[str, tuple[Loss, ...]] = {
    "dpo": ("chunked", "standard", "sliced", *CONCATENATED, "liger", "log_softmax", "logits_to_keep"),
    "kto": ("chunked", "log_softmax", "logits_to_keep"),
    "orpo": ("standard",),
    "cpo": ("standard",),
    "simpo": ("standard",),
}
"""Ways to compute log-probabilities in them; the first is that of TRL 1.16."""


def is_preference(job: Job) -> bool:
    """Whether one of TRL's preference trainers runs the job."""
    return job.task in PREFERENCE


NO_REWARD = frozenset({"cohere", "cohere2", "glm4_moe", "granite", "olmoe"})
"""Causal language models for which transformers 5.23 has no ForSequenceClassification (modeling_auto.py)."""

TASK_RULES = (
    Rule(
        lambda job: job.reference is not None and job.task not in REFERRING,
        IMPOSSIBLE,
        "{reference} has no meaning without {task=dpo} or its kin",
    ),
    Rule(
        lambda job: job.reference == "adapters_off" and job.method == "full",
        IMPOSSIBLE,
        "{reference} with {method}: there are no adapters; give {reference=model} or precomputed",
    ),
    Rule(
        lambda job: job.prompt_length is not None and job.task not in (*SCORING, *ROLLOUTS),
        IMPOSSIBLE,
        "{prompt_length} has no meaning without {task=dpo} or its kin",
    ),
    Rule(
        lambda job: is_preference(job) and (job.prompt_length or 0) >= job.sequence_length,
        IMPOSSIBLE,
        "{prompt_length} leaves no token of {sequence_length} to the answer",
    ),
    Rule(
        lambda job: job.prompt_length == 0 and job.task in (*SCORING, *ROLLOUTS),
        IMPOSSIBLE,
        "{prompt_length}: a prompt has at least one token",
    ),
    Rule(
        lambda job: is_preference(job) and job.batches == "packed",
        UNSUPPORTED,
        "{batches} with {task}: TRL packs no pairs (padding_free is switched off since 0.29); use {batches=padded}",
    ),
    Rule(
        lambda job: is_preference(job) and job.loop == "plain",
        UNSUPPORTED,
        "{loop} with {task}: TRL's trainers are modelled; use {loop=trainer}",
    ),
    *(
        Rule(
            lambda job, task=task, losses=losses: job.task == task and job.loss not in losses,  # type: ignore[misc]
            UNSUPPORTED,
            f"{{loss}} with {{task}} is not modelled yet; use {{loss={losses[0]}}}, which TRL 1.16 computes",
        )
        for task, losses in PREFERENCE_LOSSES.items()
    ),
    Rule(
        lambda job: job.task != "dpo" and job.loss in CONCATENATED,
        IMPOSSIBLE,
        "{loss} has no meaning without {task=dpo}",
    ),
    Rule(
        lambda job: job.task not in ("dpo", "kto") and job.loss in OF_FRAMEWORKS,
        IMPOSSIBLE,
        "{loss} has no meaning without {task=dpo} or kto",
    ),
    Rule(
        lambda job: job.task == "dpo" and job.loss == "liger" and job.reference == "precomputed",
        IMPOSSIBLE,
        "{loss} with {reference}: TRL's DPOTrainer stops at both; use {loss=chunked}",
    ),
    Rule(
        lambda job: job.task == "dpo" and job.loss == "liger" and job.strategy in ("fsdp", "zero3"),
        UNSUPPORTED,
        "{loss} with {task} under {strategy} was not compared with a run of TRL; use {strategy=zero2}, or"
        " {loss=chunked}",
    ),
    Rule(
        lambda job: is_preference(job) and job.pictures > 0,
        UNSUPPORTED,
        "{task} with images is not modelled yet; use {images=0}",
    ),
    Rule(
        lambda job: is_preference(job) and job.lengths is not None,
        UNSUPPORTED,
        "samples of several lengths with {task} are not modelled yet; give {sequence_length} of the longest",
    ),
    Rule(
        lambda job: is_preference(job) and (job.strategy in ("device_map", "zero0") or job.offload != "none"),
        UNSUPPORTED,
        "{strategy} {offload} with {task} is not modelled yet; use {strategy=zero2} and {offload=none}",
    ),
    Rule(
        lambda job: job.task in ("orpo", "cpo", "simpo") and job.strategy != "ddp",
        UNSUPPORTED,
        "{strategy} with {task} was not compared with a run of TRL yet; use {strategy=ddp}",
    ),
    Rule(
        lambda job: (
            is_preference(job)
            and job.strategy == "fsdp"
            and job.task not in (("dpo",) if job.fsdp.version == 1 else ("dpo", "kto"))
        ),
        UNSUPPORTED,
        "{strategy} with {task} is modelled for DPO, and for KTO under FSDP version 2; use {strategy=zero2}",
    ),
    Rule(
        lambda job: is_preference(job) and job.strategy in ("fsdp", "zero3") and job.quantize != "none",
        UNSUPPORTED,
        "{strategy} {quantize} with {task} is not modelled yet; use {strategy=zero2}",
    ),
    Rule(
        lambda job: (
            is_preference(job)
            and (job.strategy == "zero3" or (job.strategy == "fsdp" and job.fsdp.version == 2))
            and job.method != "full"
            and job.loads_reference
        ),
        UNSUPPORTED,
        "{strategy} {reference} with adapters was not compared with a run of TRL; use {reference=adapters_off}",
    ),
    Rule(
        lambda job: (
            job.task in ("dpo", "kto")
            and (job.strategy, job.checkpointing, job.reentrant) == ("zero3", "full", False)
            and job.method != "full"
        ),
        UNSUPPORTED,
        "{strategy} {task} with adapters is modelled with reentrant checkpointing, which TRL makes it; give"
        " {reentrant=True}",
    ),
)
