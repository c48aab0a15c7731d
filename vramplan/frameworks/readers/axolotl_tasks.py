"""axolotl's ``rl:``: trainers of the TRL that it requires (0.19.0: core/builders/rl.py, core/trainers/dpo)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.nearest import estimate_command, refuse_task
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers.axolotl_grpo import grpo_fields
from vramplan.frameworks.readers.trl_grpo import completion_length
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import own_reference
from vramplan.units import round_up

SINCE, TRL = "0.19", "1.9.0"
"""The first version whose requirements were read, and the TRL that it requires."""
TASKS = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo", "simpo": "simpo"}
"""Values of `rl` -> the job's task; `grpo` is read in :mod:`vramplan.frameworks.readers.axolotl_grpo`."""
GRPO = ("grpo", "gdpo")
"""Values of `rl` that are TRL's GRPOTrainer."""
LOSS = "axolotl_log_probs"
"""How TRL's trainers compute the loss of every ``rl`` with axolotl's kernels (loaders/patch_manager.py)."""
DPO_LOSSES = (
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_pair",
    "aot_unpaired", "apo_zero", "apo_down", "discopop", "sigmoid_norm",
)  # fmt: skip
"""Values of `dpo_loss_type` that differ in numbers for each sample."""
UNREAD = "under FSDP, and before axolotl 0.19,"
ENGINES = ("ddp", "zero1", "zero2", "zero3")
"""Strategies under which it does no more than TRL's trainer; under FSDP it changes dtypes after that is made.

A reference of full fine-tuning is loaded as the model is, under ZeRO-3 in parts (train.py: setup_reference_model), and
TRL gives it an engine of its own.
"""


def read_task(config: ConfigReader, version: str, model: str, job: dict[str, Any]) -> dict[str, Any]:
    """Fields of a job that ``rl:`` changes; `job` has been read for supervised fine-tuning.

    Raises:
        UnsupportedError: for training, or a setting, that is not modelled.
    """
    value = config.lowercase("rl", default="")
    task = TASKS.get(value)
    strategy = job.get("strategy", "ddp")
    is_read = at_least(version, SINCE) and strategy in ENGINES
    if value in GRPO:
        nearest = f"{estimate_command(model, _nearest_grpo(config, job))} --loss {LOSS}"
        if not is_read or strategy == "zero3":  # its completions were not compared with TRL 1.9's there
            where = "under FSDP and ZeRO-3, and before axolotl 0.19,"
            raise config.unsupported("rl", f"{where} is not read yet; nearest, TRL's own trainer: {nearest}")
        try:
            return _without_plugins(config, value, job) | grpo_fields(config, TRL, job) | {"loss": LOSS}
        except UnsupportedError as error:
            raise UnsupportedError(f"{error.text}; nearest, TRL's own trainer: {nearest}") from None
    if value == "ebft":  # core/trainers/ebft: embeddings of completions by a copy of the model, or strided generation
        nearest = f"{estimate_command(model, _nearest_grpo(config, job))} --loss {LOSS}"
        raise config.unsupported(
            "rl", f"is a trainer of axolotl's own, not modelled yet; nearest, TRL's GRPO: {nearest}"
        )
    if task is None or not is_read:
        raise refuse_task(config, "rl", value, model, job, "" if task is None else f"{UNREAD} ")
    for name in ("dpo_use_weighting", "dpo_use_liger_kernel", "rl_adapter_ref_model", "trainer_cls"):
        config.require_off(name)
    for name in config.strings("dpo_loss_type"):
        if name.lower() not in DPO_LOSSES:
            raise config.unsupported("dpo_loss_type", f"{name} is not modelled yet")
    _without_plugins(config, value, job)
    if config.boolean("dpo_padding_free", default=False):
        config.note("warning", "dpo_padding_free", "has no effect: TRL switched it off for DPO in 0.29")
    for name in ("rl_beta", "dpo_label_smoothing", "dpo_loss_weights", "orpo_alpha", "simpo_gamma"):
        config.read_keys.add(name)
    if task == "kto":
        _check_kto(config, job)
    fields: dict[str, Any] = {"task": task, "loss": LOSS}
    fields |= {"batches": "padded", "sequence_length": _padded(config, job["sequence_length"])}
    if task == "simpo" and config.number("cpo_alpha", default=1.0):
        fields["task"] = "cpo"  # which adds the cross-entropy of chosen answers
    if task == "dpo" and config.boolean("precompute_ref_log_probs", default=False):
        fields["reference"] = "precomputed"
    if task in ("dpo", "kto") and job.get("quantize", "none") != "none":
        fields["lora_dtype"] = "bf16"  # TRL adds the adapters, and casts those of a quantized model
    if task == "dpo":
        config.note("warning", "rl", "empties PyTorch's cache after every micro-batch: caches less than this says")
    return fields


def _without_plugins(config: ConfigReader, value: str, job: dict[str, Any]) -> dict[str, Any]:
    """Nothing, unless a plugin changes the loss or the layers.

    Raises:
        UnsupportedError: naming it.
    """
    config.require_off("trainer_cls")
    if job.get("loss", "standard") != "standard" or job.get("fused_kernels"):
        raise config.unsupported("plugins", f"with rl: {value} is not modelled yet")
    return {}


def _check_kto(config: ConfigReader, job: dict[str, Any]) -> None:
    """Refuse what TRL 1.9's KTOTrainer stops at, and the second model that it loads by itself in fp32.

    Raises:
        ConfigError: for micro-batches of one sample.
        UnsupportedError: for full fine-tuning, as axolotl hands it no reference (core/builders/rl.py).
    """
    if job["micro_batch_size"] < 2:
        raise ConfigError(
            f"{config.place('micro_batch_size')}: micro_batch_size: KTOTrainer stops at 1: its KL term takes answers of"
            " other prompts of the batch"
        )
    if job["method"] == "full":
        raise config.unsupported(
            "rl", "with full fine-tuning is not modelled yet: TRL loads its reference in fp32; adapter: lora is"
        )


def _nearest_grpo(config: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """TRL's GRPO with the settings: rows of sequence_len tokens, of which a prompt has what completions leave."""
    fields = {name: one for name, one in job.items() if name not in ("loss", "batches")} | {"task": "grpo"}
    trl, vllm = config.section("trl"), config.section("vllm")
    if trl is None:
        return fields
    fields["num_generations"] = trl.integer("num_generations", default=8)
    if trl.number("beta", default=0.0):
        fields["reference"] = own_reference(job["method"])
    completion = completion_length(trl, TRL)
    if completion < job["sequence_length"]:
        fields["prompt_length"] = job["sequence_length"] - completion
    if trl.boolean("use_vllm", default=False):
        mode = trl.lowercase("vllm_mode", default="")
        fields["generate_with"] = "vllm_server" if mode == "server" else "vllm"
        if mode == "colocate":  # without it, TRL's own share counts (core/trainers/grpo: set_training_args_kwargs)
            fields["generate_with"] = "vllm_sleep" if trl.boolean("vllm_enable_sleep_mode", default=False) else "vllm"
            meant = trl.number(
                "vllm_gpu_memory_utilization", default=0.9
            )  # refused there: the file's value all the same
            fields["vllm_share"] = meant if vllm is None else vllm.number("gpu_memory_utilization", default=meant)
    return fields


def _padded(config: ConfigReader, length: int) -> int:
    """The length with the collator's padding (utils/collators/dpo.py)."""
    multiple = config.integer("pad_to_multiple_of", default=1)
    return round_up(length, multiple)
