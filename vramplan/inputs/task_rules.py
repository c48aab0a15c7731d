"""What a preference task cannot do, or what is not modelled of it."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.job_values import GENERATING, REFERRING, ROLLOUTS, Loss, own_reference
from vramplan.inputs.ppo_rules import adapts_values
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule

PREFERENCE = ("dpo", "kto", "orpo", "cpo", "simpo", "reward")
"""Tasks of TRL's preference trainers."""
PAIRS = ("dpo", "orpo", "cpo", "simpo", "reward")
"""Tasks whose samples are pairs of a chosen and a rejected answer."""
TRL_TASKS = (*PREFERENCE, *GENERATING)
"""Tasks of TRL's trainers."""
SCORING = ("dpo", "kto", "orpo", "cpo", "simpo")
"""Those that compute log-probabilities of answers."""
ODDS = ("orpo", "cpo", "simpo")
"""Those without a reference."""
LOSS_OUTSIDE = (*TRL_TASKS, "embedding", "reranker", "generative_reranker")
"""Tasks whose trainer computes the loss from what the model returns."""
CONCATENATED: tuple[Loss, ...] = ("concatenated_states", "concatenated")
"""Those of TRL before 0.29."""
OF_FRAMEWORKS: dict[Loss, str] = {
    "log_softmax": "LLaMA-Factory",
    "value_head": "LLaMA-Factory",
    "logits_to_keep": "ms-swift",
    "liger_logits_to_keep": "ms-swift",
    "scaled_log_softmax": "torchtune",
    "kept_log_probs": "OpenRLHF",
}
"""Those of frameworks' own trainers, and the frameworks."""
DIVIDED_IN_PLACE: tuple[Loss, ...] = ("divided_in_place", "axolotl_log_probs")
"""Those of GRPO and RLOO that divide logits by the temperature where they lie (TRL 1.0 to 1.9)."""
OF_SWIFT: tuple[Loss, ...] = ("logits_to_keep", "liger_logits_to_keep")
"""Those of ms-swift's own trainers."""
WITH_DROPOUT: tuple[Loss, ...] = ("value_head", "scaled_log_softmax", "kept_log_probs")
"""Those whose trainers leave dropout on."""
IN_PLAIN_LOOPS: tuple[Loss, ...] = ("scaled_log_softmax", "kept_log_probs")
"""Those of loops that are not transformers' Trainer."""
PREFERENCE_LOSSES: dict[str, tuple[Loss, ...]] = {
    "dpo": (
        "chunked",
        "standard",
        "sliced",
        *CONCATENATED,
        "liger",
        "log_softmax",
        "logits_to_keep",
        "scaled_log_softmax",
        "kept_log_probs",
        "axolotl_log_probs",
    ),
    "kto": ("chunked", "standard", "copied_logits", "log_softmax", "logits_to_keep", "axolotl_log_probs"),
    "orpo": ("fused_log_probs", "standard", "axolotl_log_probs"),
    "cpo": ("fused_log_probs", "standard", "axolotl_log_probs"),
    "simpo": ("fused_log_probs", "standard", "axolotl_log_probs"),
    "reward": ("standard", "chunked", "two_forwards", "value_head", "kept_log_probs"),
}
"""Ways to compute log-probabilities in them; the first is that of TRL 1.16."""


def saved_head(job: Job) -> tuple[str, ...]:
    """The head that PEFT trains as a copy beside the adapters of a reward model, or of a value model."""
    is_saved = job.task == "reward" and job.loss not in ("value_head", "kept_log_probs")
    return ("score",) if (job.method != "full" and is_saved) or adapts_values(job) else ()


def is_preference(job: Job) -> bool:
    """Whether one of TRL's preference trainers runs the job."""
    return job.task in PREFERENCE


def _takes_own_reference(job: Job) -> bool:
    """Whether the reference is the model without adapters, or a second one if it has none."""
    return job.reference in (None, own_reference(job.method))


def is_sharded_by_torchtune(job: Job) -> bool:
    """Whether one of torchtune's recipes for several GPUs runs the job."""
    return job.strategy == "fsdp" and job.layers_of == "torchtune"


def drops_nothing(job: Job) -> bool:
    """Whether the job's trainer switches dropout off, as TRL's do (disable_dropout)."""
    return (job.task in (*PREFERENCE, "gkd") and job.loss not in WITH_DROPOUT) or job.value_model is not None


JOINING: tuple[Loss, ...] = ("kept_log_probs", "logits_to_keep", *CONCATENATED)
"""Those of preference trainers that put several answers into one row (padding_free)."""

NO_REWARD = frozenset(
    {
        *("apertus", "cohere", "cohere2", "cwm", "dots1", "ernie4_5", "ernie4_5_moe", "falcon_h1", "gemma3n_text"),
        *("gemma4_text", "gemma4_unified_text", "glm4_moe", "glm4_moe_lite", "granite", "granitemoe"),
        *("granitemoehybrid", "granitemoeshared", "lfm2", "lfm2_moe", "llama4_text", "mamba2", "minimax_m2"),
        *("nemotron_h", "olmoe", "qwen3_5_moe_text", "solar_open"),
    }
)
"""Causal language models for which transformers 5.23 has no ForSequenceClassification (modeling_auto.py)."""

TASK_RULES = (
    Rule(
        lambda job: job.reference is not None and job.task not in REFERRING,
        IMPOSSIBLE,
        "{reference} has no meaning without {task=dpo} or its kin",
    ),
    Rule(
        lambda job: job.reference in ("adapters_off", "frozen_adapters") and job.method == "full",
        IMPOSSIBLE,
        "{reference} with {method}: there are no adapters; give {reference=model} or precomputed",
    ),
    Rule(
        lambda job: (
            job.reference == "frozen_adapters"
            and (job.task == "ppo" or job.runs_own_actor or job.loss in ("liger", "log_softmax", *IN_PLAIN_LOOPS))
        ),
        UNSUPPORTED,
        "{reference} with {task} and {loss} is not modelled: it is of TRL's and ms-swift's trainers; use"
        " {reference=adapters_off}",
    ),
    Rule(
        lambda job: job.reference == "frozen_adapters" and job.strategy not in ("ddp", "zero1", "zero2"),
        UNSUPPORTED,
        "{reference} with {strategy} was not compared with a run of TRL; use {strategy=zero2}, or"
        " {reference=adapters_off}, which needs less by their weights in fp32",
    ),
    Rule(
        lambda job: (
            job.reference == "frozen_adapters" and bool(job.method == "dora" or job.modules_to_save or job.images)
        ),
        UNSUPPORTED,
        "{reference} with DoRA, {modules_to_save} or {images} was not compared with a run of TRL; use"
        " {reference=adapters_off}",
    ),
    Rule(
        lambda job: job.prompt_length is not None and job.task not in (*SCORING, *GENERATING),
        IMPOSSIBLE,
        "{prompt_length} has no meaning without {task=dpo} or its kin",
    ),
    Rule(
        lambda job: job.task in (*PREFERENCE, "gkd") and (job.prompt_length or 0) >= job.sequence_length,
        IMPOSSIBLE,
        "{prompt_length} leaves no token of {sequence_length} to the answer",
    ),
    Rule(
        lambda job: job.prompt_length == 0 and job.task in (*SCORING, *GENERATING),
        IMPOSSIBLE,
        "{prompt_length}: a prompt has at least one token",
    ),
    Rule(
        lambda job: is_preference(job) and job.joins_samples and job.loss not in JOINING,
        UNSUPPORTED,
        "{batches} with {task}: TRL packs no pairs (padding_free is switched off since 0.29); use {batches=padded}",
    ),
    Rule(
        lambda job: job.loss == "logits_to_keep" and job.joins_samples and job.attention != "flash",
        IMPOSSIBLE,
        "{attention} with {batches}: ms-swift stops at padding_free without FlashAttention; use {attention=flash}",
    ),
    Rule(
        lambda job: (
            job.adds_cross_entropy
            and job.loss not in CONCATENATED
            and (job.task, job.loss) != ("gkd", "logits_to_keep")
        ),
        UNSUPPORTED,
        "adds_cross_entropy is modelled for {loss=concatenated_states} and concatenated, of TRL 0.15 to 0.28, and for"
        " {task=gkd} with {loss=logits_to_keep}",
    ),
    Rule(
        lambda job: is_preference(job) and job.loop == "plain" and job.loss not in IN_PLAIN_LOOPS,
        UNSUPPORTED,
        "{loop} with {task}: TRL's trainers are modelled; use {loop=trainer}",
    ),
    Rule(
        lambda job: job.loss in IN_PLAIN_LOOPS and job.loop != "plain",
        IMPOSSIBLE,
        "{loss} is of a loop that is not transformers' Trainer; use {loop=plain}",
    ),
    Rule(
        lambda job: job.loss == "kept_log_probs" and job.task not in (None, "dpo", "reward", "grpo"),
        IMPOSSIBLE,
        "{loss} has no meaning with {task}; it is of OpenRLHF's supervised training, {task=dpo}, reward and grpo",
    ),
    Rule(
        lambda job: (
            job.loss == "kept_log_probs"
            and job.task == "reward"
            and (job.joins_samples or job.quantize != "none" or job.strategy == "zero3")
        ),
        UNSUPPORTED,
        "{batches} {quantize} {strategy} with {task} of OpenRLHF was not compared with a run; use {batches=padded},"
        " {quantize=none} and {strategy=zero2}",
    ),
    Rule(
        lambda job: job.loss == "kept_log_probs" and job.autocast != "none",
        IMPOSSIBLE,
        "{loss} runs without autocast, as DeepSpeed casts the weights; use {autocast=none}",
    ),
    Rule(
        lambda job: job.loss == "kept_log_probs" and job.strategy in ("fsdp", "device_map", "zero0"),
        UNSUPPORTED,
        "{strategy} with {loss} is not modelled: OpenRLHF runs DeepSpeed; use {strategy=zero2}",
    ),
    Rule(
        lambda job: (
            job.loss == "scaled_log_softmax"
            and (job.method == "full" or job.num_gpus > 1)
            and not is_sharded_by_torchtune(job)
        ),
        UNSUPPORTED,
        "{loss} is modelled for adapters on one GPU, as torchtune's lora_dpo_single_device, and as its recipes on"
        " several shard the model (layers_of torchtune); use {method=lora} and {num_gpus=1}",
    ),
    Rule(
        lambda job: job.loss == "scaled_log_softmax" and (job.autocast != "none" or not _takes_own_reference(job)),
        UNSUPPORTED,
        "{loss} runs without autocast and with the model without adapters as reference, if there are any; use"
        " {autocast=none} and {reference=adapters_off}",
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
        lambda job: job.task not in ODDS and job.loss == "fused_log_probs",
        IMPOSSIBLE,
        "{loss} has no meaning without {task=orpo}, cpo or simpo",
    ),
    Rule(
        lambda job: job.task not in (*SCORING, "grpo") and job.loss == "axolotl_log_probs",
        IMPOSSIBLE,
        "{loss} has no meaning without {task=dpo} or its kin, or grpo",
    ),
    Rule(
        lambda job: job.task not in ROLLOUTS and job.loss == "divided_in_place",
        IMPOSSIBLE,
        "{loss} has no meaning without {task=grpo} or rloo",
    ),
    Rule(
        lambda job: job.task != "dpo" and job.loss in CONCATENATED,
        IMPOSSIBLE,
        "{loss} has no meaning without {task=dpo}",
    ),
    Rule(
        lambda job: job.task != "kto" and job.loss == "copied_logits",
        IMPOSSIBLE,
        "{loss} has no meaning without {task=kto}",
    ),
    Rule(
        lambda job: job.task not in ("dpo", "kto") and job.loss in ("log_softmax", "scaled_log_softmax"),
        IMPOSSIBLE,
        "{loss} has no meaning without {task=dpo} or kto",
    ),
    Rule(
        lambda job: job.task != "grpo" and job.loss == "liger_logits_to_keep",
        IMPOSSIBLE,
        "{loss} has no meaning without {task=grpo}",
    ),
    Rule(
        lambda job: job.task not in ("dpo", "kto", "grpo", "gkd") and job.loss == "logits_to_keep",
        IMPOSSIBLE,
        "{loss} has no meaning without {task=dpo}, kto, grpo or gkd",
    ),
    Rule(
        lambda job: job.loss == "two_forwards" and job.strategy in ("fsdp", "zero3"),
        UNSUPPORTED,
        "{strategy} with {loss} was not compared with a run of TRL; use {strategy=zero2}",
    ),
    Rule(
        lambda job: job.task != "reward" and job.loss in ("value_head", "two_forwards"),
        IMPOSSIBLE,
        "{loss} has no meaning without {task=reward}",
    ),
    Rule(
        lambda job: job.loss == "value_head" and (job.strategy, job.method) == ("zero3", "full"),
        IMPOSSIBLE,
        "{strategy} with {loss} and {method}: DeepSpeed 0.19 stops at the fp32 value head among half-precision weights"
        " (zero/utils.py: defragment); use {strategy=zero2}, or {method=lora}",
    ),
    Rule(
        lambda job: (
            job.loss == "value_head" and (job.strategy, job.fsdp.version) == ("fsdp", 1) and job.dtype != "fp32"
        ),
        IMPOSSIBLE,
        "{strategy} version 1 with {loss}: PyTorch stops at the fp32 value head among half-precision weights (Must"
        " flatten tensors with uniform dtype); use fsdp version 2",
    ),
    Rule(
        lambda job: (
            job.loss == "value_head"
            and job.strategy not in ("ddp", "zero1", "zero2", "zero3")
            and (job.strategy, job.method, job.fsdp.version) != ("fsdp", "lora", 2)
        ),
        UNSUPPORTED,
        "{strategy} with {loss} and {method} was not compared with a run of LLaMA-Factory; use {strategy=zero2}",
    ),
    Rule(
        lambda job: job.loss == "value_head" and (job.strategy, job.method) == ("ddp", "full") and job.num_gpus > 1,
        UNSUPPORTED,
        "{loss} with {method} on several GPUs: DDP stops at a head without a gradient; use {strategy=zero2}",
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
        lambda job: is_preference(job) and job.lengths is not None,
        UNSUPPORTED,
        "samples of several lengths with {task} are not modelled yet; give {sequence_length} of the longest",
    ),
    Rule(
        lambda job: (
            is_preference(job)
            and (job.strategy in ("device_map", "zero0") or job.offload != "none")
            and not is_sharded_by_torchtune(job)
        ),
        UNSUPPORTED,
        "{strategy} {offload} with {task} is not modelled yet; use {strategy=zero2} and {offload=none}",
    ),
    Rule(
        lambda job: job.task == "kto" and job.strategy == "fsdp" and job.fsdp.version == 1,
        UNSUPPORTED,
        "{strategy} version 1 with {task} was not compared with a run of TRL; use fsdp version 2, or {strategy=zero2}",
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
