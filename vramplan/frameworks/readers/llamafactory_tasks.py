"""LLaMA-Factory's stages of preference training (0.9.5: train/dpo, train/kto, train/rm, hparams/finetuning_args.py)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import own_reference
from vramplan.units import round_up

WRITTEN = ("dpo", "kto")
"""Stages that are written too, by the job's task."""
STAGES = (*WRITTEN, "rm")
"""Stages whose trainers are modelled, beside supervised fine-tuning."""
FREE_OF_REFERENCE = ("orpo", "simpo")
LOSSES = ("sigmoid", "hinge", "ipo", *FREE_OF_REFERENCE)
"""Values of pref_loss, which differ in numbers for each sample."""
MULTIPLE = 8
"""The collators pad to a multiple of it."""


def task_fields(config: ConfigReader, stage: str, version: str, job: dict[str, Any]) -> dict[str, Any]:
    """What a stage changes in a job that has been read for supervised fine-tuning.

    The log-probabilities of DPO and KTO are LLaMA-Factory's own, not TRL's (train/trainer_utils.py: get_batch_logps),
    and those trainers switch dropout off.

    Raises:
        UnsupportedError: for a setting that is not modelled.
    """
    if stage == "rm":
        return _reward_fields(config, job)
    fields: dict[str, Any] = {"task": stage, "loss": "log_softmax", "batches": "padded"}
    fields["sequence_length"] = round_up(job["sequence_length"], MULTIPLE)
    if job["method"] != "full":
        fields["lora_dropout"] = 0.0
    if job.get("loss") == "liger" and not at_least(version, "0.9.4"):  # model_utils/liger_kernel.py: require_logits
        raise config.unsupported("enable_liger_kernel", f"in stage {stage} before 0.9.4 is not modelled yet")
    loss = config.lowercase("pref_loss", "dpo_loss", default="sigmoid")
    if stage == "dpo" and loss not in LOSSES:
        raise config.unsupported("pref_loss", f"is not modelled yet; modelled: {', '.join(LOSSES)}")
    if stage == "dpo" and loss in FREE_OF_REFERENCE:
        fields["reference"] = "none"
    elif job["method"] == "full" and job["dtype"] == "fp32" and job["autocast"] != "none":
        raise config.unsupported(  # trainer_utils.py: create_ref_model takes the checkpoint's dtype
            "finetuning_type",
            f"trains fp32 weights beside a reference in half precision in stage {stage}, which is not"
            " modelled yet; set pure_bf16: true, or finetuning_type: lora",
        )
    return fields


def _reward_fields(config: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """What reward modelling changes: a whole language model with a value head, and a plain Trainer with dropout."""
    if job.get("loss") == "liger":
        raise config.unsupported("enable_liger_kernel", "in stage rm is not modelled yet; leave it out")
    length = round_up(job["sequence_length"], MULTIPLE)
    return {"task": "reward", "loss": "value_head", "batches": "padded", "sequence_length": length}


def refuse_reference(config: ConfigReader, stage: str) -> None:
    """Refuse a reference of its own; ORPO and SimPO have none, and other stages do not load it.

    Raises:
        UnsupportedError: naming it.
    """
    loss = config.lowercase("pref_loss", "dpo_loss", default="sigmoid")
    if stage in ("dpo", "kto", "ppo") and loss not in FREE_OF_REFERENCE:
        without = setting("set", "ref_model=")
        why = f"is not modelled yet; {without} estimates the reference that LLaMA-Factory makes by itself"
        config.require_off("ref_model", why=f"as a reference of its own {why}: with adapters it is the base model")
    config.read_keys.add("ref_model")


def refuse_stage(config: ConfigReader, stage: str) -> UnsupportedError:
    """The error for another stage."""
    return config.unsupported("stage", f"is not modelled yet; modelled: sft, pt, {', '.join(STAGES)}")


def ppo_fields(config: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """What the stage `ppo` changes in a job that has been read for supervised fine-tuning (train/ppo/trainer.py).

    Raises:
        UnsupportedError: for a setting that is not modelled.
        ConfigError: for one that LLaMA-Factory stops at.
    """
    prompt, new = job["sequence_length"], config.integer("max_new_tokens", default=1024, least=0)
    if not config.has("max_new_tokens"):
        config.note("default", "max_new_tokens", "not set: 1024")
    length = prompt + new if new else config.integer("max_length", default=1024)
    if job.get("fused_kernels") or job.get("loss", "standard") not in ("standard", "liger"):
        raise config.unsupported("enable_liger_kernel", "in stage ppo is not modelled yet; leave it out")
    if job["autocast"] == "none":
        raise ConfigError(
            f"{config.place('stage')}: stage ppo without bf16 or fp16 runs under fp16 autocast all the same, which is"
            " not modelled; set bf16: true"
        )
    if config.number("val_size", default=0.0) > 0 or config.has("eval_dataset"):
        key = "val_size" if config.has("val_size") else "eval_dataset"
        raise config.invalid((key,), "none in stage ppo, where LLaMA-Factory stops at a data set to evaluate")
    lengths = {"prompt_length": min(prompt, length - 1), "sequence_length": length}
    return lengths | {"task": "ppo", "loss": "standard", "batches": "padded"} | _scores(config, job)


def _scores(config: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """What scores completions: adapters on the policy's weights, a whole model, a server (create_reward_model)."""
    kind = config.lowercase("reward_model_type", default="lora")
    if kind not in ("lora", "full", "api"):
        raise config.unsupported("reward_model_type", "is not modelled; modelled: lora, full, api")
    if not config.has("reward_model"):
        raise ConfigError(f"{config.place('stage')}: stage ppo needs a reward_model, without which LLaMA-Factory stops")
    if job["method"] == "full":  # trainer_utils.py: create_ref_model takes the checkpoint's dtype
        raise config.unsupported(
            "finetuning_type",
            "trains fp32 weights beside a reference in half precision in stage ppo, which is not modelled yet; set"
            " finetuning_type: lora",
        )
    config.require_off("reward_model_quantization_bit", why="quantizes the reward model, which is not modelled yet")
    config.require_off("ref_model_quantization_bit", why="quantizes a reference, which is not modelled yet")
    config.read_keys.add("reward_model_adapters")  # merged into the reward model
    if kind == "full":
        return {"reward_model": config.string("reward_model"), "reward_dtype": job["dtype"]}
    return {"reward_adapters": kind == "lora"}


def stage_pairs(job: Job) -> Pairs:
    """The stage of a job, for a configuration.

    Raises:
        UnsupportedError: for a reference that LLaMA-Factory does not make by itself.
    """
    if job.reference not in (None, own_reference(job.method)):
        raise UnsupportedError(
            f"{setting('for_framework', 'llamafactory')}: {setting('reference', job.reference)} is not written for it"
        )
    return {"stage": job.task or "sft"}
