"""ms-swift's ``swift rlhf``: preference training and reward models (3.12 and 4.6: rlhf_trainers, rlhf_args.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.nearest import refuse_task
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers import ms_swift_gkd, ms_swift_ppo, saved_adapters
from vramplan.frameworks.readers.ms_swift_model import SAVED
from vramplan.frameworks.readers.ms_swift_rows import (
    TAKE_ROWS,
    refuse_rows,
    refuse_shared,
    rows_of_pairs,
    shared_fields,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import own_reference

SINCE = {"kto": "3.9"}
"""The first version whose trainer has the same large tensors, by the task; of the others:"""
SINCE_OTHERS = "3.5"
OLDER = {
    "dpo": "DPO of 3.0 to 3.4 holds logits of prompts too and needs more",
    "kto": "KTO of 3.0 to 3.8 holds logits of prompts too and needs more",
}
"""What versions before them do otherwise."""
TASKS = {"dpo": "dpo", "kto": "kto", "orpo": "orpo", "cpo": "cpo", "simpo": "simpo", "rm": "reward"}
"""Values of rlhf_type -> the job's task."""
OWN_LOGITS = ("dpo", "kto")
"""Tasks whose log-probabilities are ms-swift's own."""
DPO_LOSSES = (
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_pair",
    "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft",
)  # fmt: skip
"""Values of loss_type that differ in numbers for each sample."""
NUMBERS = (
    "beta", "label_smoothing", "rpo_alpha", "ld_alpha", "discopop_tau", "loss_weights", "simpo_gamma",
    "desirable_weight", "undesirable_weight", "center_rewards_coefficient", "f_divergence_type", "reference_free",
    "loss_scale",
)  # fmt: skip
"""Settings that change no large tensor: the cross-entropy of rpo_alpha is made of the log-probabilities that exist."""
NOT_MODELLED = ("precompute_ref_log_probs",)
REF_ADAPTERS = "ref_adapters"
WITH_REF_ADAPTERS = ("dpo", "kto", "grpo")
"""Values of rlhf_type that take them (4.6, pipelines/train/rlhf.py: prepare_model)."""


def is_rlhf(config: ConfigReader) -> bool:
    """Whether the command is ``swift rlhf``."""
    return config.has("rlhf_type") or any("rlhf" in word for word in (*config.source.command, config.source.program))


def task_fields(config: ConfigReader, version: str, model: str, job: dict[str, Any]) -> dict[str, Any]:
    """What ``swift rlhf`` changes in a job that has been read for supervised fine-tuning.

    The trainers of 3.12 and 4 switch dropout off, as the configurations of TRL that they inherit say.

    Raises:
        UnsupportedError: for training, or a setting, that is not modelled.
    """
    value = config.lowercase("rlhf_type", default="dpo")
    task = TASKS.get(value)
    if value != "dpo":
        refuse_shared(config)
    if value == "gkd" and not at_least(version, ms_swift_gkd.SINCE):
        raise ms_swift_gkd.earlier(config, model, job)
    if value == "gkd":
        return ms_swift_gkd.task_fields(config, model, job)
    if value == "ppo":
        return ms_swift_ppo.task_fields(config, version, model, job)
    if task is None or not at_least(version, SINCE.get(task, SINCE_OTHERS)):
        raise refuse_task(config, "rlhf_type", value, model, job)
    if job.get("strategy") == "fsdp":
        raise config.unsupported("fsdp", f"with rlhf_type {value} is not modelled yet; nearest: deepspeed zero3")
    for name in NOT_MODELLED:
        without = setting("set", f"{name}=")
        config.require_off(name, why=f"with rlhf_type {value} is not modelled yet; the rest is read with {without}")
    if value not in TAKE_ROWS:
        refuse_rows(config, f"rlhf_type {value}")
    if config.number("router_aux_loss_coef", default=0.0):
        raise config.unsupported("router_aux_loss_coef", f"with rlhf_type {value} is not modelled yet")
    if not config.boolean("disable_dropout", default=True):
        raise config.unsupported("disable_dropout", "is not modelled yet; the default is true")
    _check_losses(config, task)
    config.read_keys |= {*NUMBERS, "loss_type", "disable_dropout", "max_completion_length"}
    fields: dict[str, Any] = {"task": task, "loss": "logits_to_keep" if task in OWN_LOGITS else "standard"}
    fields |= rows_of_pairs(config, job) if value in TAKE_ROWS else {"batches": "padded"}
    if task == "simpo" and config.number("cpo_alpha", default=1.0):
        fields["task"] = "cpo"  # it runs CPO's trainer, whose cpo_alpha adds the cross-entropy of chosen answers
    if job["method"] != "full":
        fields["lora_dropout"] = 0.0
    if task in ("dpo", "kto") or job["method"] != "full":
        check_reference(config, job)
    fields |= reference_adapters(config, value, job)
    if task == "dpo":
        fields |= shared_fields(config, version, job["num_gpus"], computes_cross_entropy=False)
    return fields


def note_older_versions(config: ConfigReader, version: str) -> None:
    """Say of ``swift rlhf`` with `train_type`, a key of 3.0 to 3.12, which of them need as much as the one counted.

    Read in 3.2, 3.4, 3.5, 3.8, 3.9, 3.10, 3.12 and 4.0 (rlhf_trainer/): but for what OLDER says the large tensors are
    the same.
    """
    value = config.lowercase("rlhf_type", default="")
    if value in OLDER:
        of = f"{SINCE.get(value, SINCE_OTHERS)} on, of which {version} is counted"
        config.note("warning", "train_type", f"is taken for ms-swift {of}; {OLDER[value]}")
    elif value == "grpo" and config.boolean("use_vllm", default=False):
        config.note(
            "doubt",
            "train_type",
            f"is a key of ms-swift 3.0 to 3.12, of which {version} is counted; how weights go to vLLM in the others was"
            " not read",
        )


def _check_losses(config: ConfigReader, task: str) -> None:
    """Values of loss_type that keep no other large tensors."""
    modelled = {"dpo": DPO_LOSSES, "kto": ("kto",), "cpo": ("sigmoid", "hinge", "ipo", "simpo"), "simpo": ("simpo",)}
    for name in config.strings("loss_type"):
        names = modelled.get(task, ("",))
        if name.lower() not in names:
            raise config.unsupported("loss_type", f"({name}) is not modelled yet; modelled: {', '.join(names)}")


def check_reference(config: ConfigReader, job: Mapping[str, Any]) -> None:
    """The second model is the trained one, in the dtype that it is loaded in (pipelines/train/rlhf.py).

    Raises:
        UnsupportedError: for another one.
    """
    if job["method"] != "full":
        if config.has("ref_model"):
            raise config.unsupported("ref_model", "beside adapters stops ms-swift: the reference is the base model")
        return
    if config.has("ref_model") and config.string("ref_model") != config.string("model", "model_id_or_path"):
        raise config.unsupported("ref_model", "other than the model itself is not modelled yet")
    if job["dtype"] == "fp32" and job["autocast"] != "none":
        raise config.unsupported("torch_dtype", "fp32 beside a reference model is not modelled yet; use bfloat16")


def reference_adapters(config: ConfigReader, kind: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Adapters of the reference beside those that train, of the same rank and layers, which PEFT loads in fp32.

    They need a gradient until the reference runs first, so that DDP and DeepSpeed would make room for it.

    Raises:
        ConfigError: where ms-swift stops at them.
        UnsupportedError: for what was not compared with a run.
    """
    folders, place = saved_adapters.names(config, REF_ADAPTERS), config.place(REF_ADAPTERS)
    if not folders:
        return {}
    if kind not in WITH_REF_ADAPTERS or len(folders) > 1:
        raise ConfigError(
            f"{place}: {REF_ADAPTERS}: ms-swift takes one, with rlhf_type {', '.join(WITH_REF_ADAPTERS)} alone"
        )
    without = setting("set", f"{REF_ADAPTERS}=")
    if job["method"] == "full" or job.get("strategy", "ddp") != "ddp" or job["num_gpus"] > 1:
        raise UnsupportedError(
            f"{place}: {REF_ADAPTERS} with full fine-tuning, under DeepSpeed or on several GPUs is not modelled;"
            f" {without} estimates the base model as reference, without the weights of the adapters"
        )
    if not saved_adapters.are_alike(config, SAVED, folders[0], job):
        raise UnsupportedError(
            f"{place}: {REF_ADAPTERS} that are not known to have rank and layers of those that train are not"
            f" modelled; {without} estimates the base model as reference"
        )
    return {"reference": "frozen_adapters"}


def type_pairs(job: Job) -> Pairs:
    """The type of a job's training, for a command; empty for supervised fine-tuning.

    Raises:
        UnsupportedError: for a reference that ms-swift does not make by itself.
    """
    if job.task is None:
        return {}
    if job.task in ("grpo", "ppo"):
        return {"rlhf_type": job.task}
    if job.reference not in (None, own_reference(job.method)):
        raise UnsupportedError(
            f"{setting('for_framework', 'swift')}: {setting('reference', job.reference)} is not written for it"
        )
    if job.task == "simpo":
        return {"rlhf_type": "simpo", "cpo_alpha": 0.0}
    return {"rlhf_type": "rm" if job.task == "reward" else job.task}
