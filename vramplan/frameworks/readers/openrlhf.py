"""OpenRLHF's trainings (0.11.2, and 0.7 to 0.9, whose flags have no dots): ``train_sft``, ``train_dpo``, ``train_rm``.

Its loops run DeepSpeed's engine without accelerate: fp32 log-probabilities of whole logits, two groups of weights,
DeepSpeed's own bucket sizes, and in DPO a second model (trainer/, models/actor.py, utils/deepspeed/). Its
reinforcement training is read by :mod:`vramplan.frameworks.readers.openrlhf_actor`, and what is not modelled refused
with the nearest estimate (:mod:`vramplan.frameworks.readers.openrlhf_nearest`).
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, resolve_version
from vramplan.frameworks.readers import openrlhf_actor
from vramplan.frameworks.readers.openrlhf_engine import check_engine, read_attention, read_dtype, read_method, read_zero
from vramplan.frameworks.readers.openrlhf_nearest import MICRO_BATCHES, TASKS, nearest
from vramplan.frameworks.readers.openrlhf_versions import check_version
from vramplan.frameworks.readers.trainer_arguments import num_launched_processes
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import FUSED_KERNELS

PACKAGE, NEWEST = "openrlhf", "0.11.2"
"""Its package, and the newest version that was read."""
LONGEST = {"train_sft": 2048, "train_dpo": 512, "train_rm": 512}
"""The programs that are read, and their data.max_len if it is not set."""
NAMES: dict[bool, dict[str, KeyNames]] = {
    True: {
        "micro_batch_size": "train.micro_batch_size",
        "sequence_length": "data.max_len",
        "lora_rank": "ds.lora.rank",
        "strategy": {"zero3": "ds.zero_stage 3"},
    },
    False: {
        "micro_batch_size": "micro_train_batch_size",
        "sequence_length": "max_len",
        "lora_rank": "lora_rank",
        "strategy": {"zero3": "zero_stage 3"},
    },
}
"""Keys, for flags with dots and without."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a training command.

    Raises:
        UnsupportedError: for what is not modelled, with the nearest estimate.
    """
    where, program = config.source.where, PurePosixPath(config.source.program).stem
    if program not in TASKS:
        raise UnsupportedError(
            f"{where}: settings of OpenRLHF without the command that takes them:"
            " give check the line of python -m openrlhf.cli.train_..."
        )
    version, origin = resolve_version(PACKAGE, framework_version, NEWEST)
    try:
        if program not in LONGEST and program != openrlhf_actor.PROGRAM:
            raise UnsupportedError(f"{where}: {program}: OpenRLHF's own step is not modelled for it yet")
        check_version(config, program, version, origin)
        refuse_unmodelled(config)
        has_dots = any("." in name for name in config.source.settings)
        if program == openrlhf_actor.PROGRAM:
            return openrlhf_actor.read(config, f"{version} ({origin})")
        job = _job(config, num_gpus, program)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error.text}; {nearest(config, num_gpus, program)}") from None
    model = config.string("model.model_name_or_path", "pretrain") or ""
    parsed = ParsedConfig(PACKAGE, f"{version} ({origin})", model, job, NAMES[has_dots], config.notes)
    parsed.task = {"dpo": "DPO", "reward": "reward model"}.get(job.get("task", ""), "SFT")
    if program == "train_rm" or config.has("eval.dataset", "eval_dataset"):  # it evaluates a part of what trains, else
        parsed.eval_batch_size = job["micro_batch_size"]
    return parsed


def _job(config: ConfigReader, num_gpus: int, program: str) -> dict[str, Any]:
    gpus = num_launched_processes(config, num_gpus)
    usual = MICRO_BATCHES.get(program, 8)
    micro_batch = config.integer("train.micro_batch_size", "micro_train_batch_size", default=usual)
    batch = config.integer("train.batch_size", "train_batch_size", default=128)
    stage = config.integer("ds.zero_stage", "zero_stage", default=2, least=0)
    dtype = read_dtype(config)
    check_engine(config, dtype, stage)
    job: dict[str, Any] = {
        "loop": "plain",
        "loss": "kept_log_probs",
        "dtype": dtype,
        "autocast": "none",
        "optimizer": "adamw_torch_fused",  # DeepSpeed's FusedAdam has the same states
        "sequence_length": config.integer("data.max_len", "max_len", default=LONGEST[program]),
        "micro_batch_size": micro_batch,
        "gradient_accumulation_steps": max(1, batch // (micro_batch * gpus)),
        "num_gpus": gpus,
        "strategy": f"zero{stage}",
        "zero": read_zero(config, stage),
        "checkpointing": "none",
        "attention": read_attention(config),
        "batches": "padded",
    }
    if config.boolean("model.gradient_checkpointing_enable", "gradient_checkpointing", default=False):
        job["checkpointing"] = "full"
        job["reentrant"] = config.boolean(
            "model.gradient_checkpointing_reentrant", "gradient_checkpointing_use_reentrant", default=False
        )
    if config.boolean("ds.packing_samples", "packing_samples", default=False):
        job |= {"batches": "packed", "attention": "flash"}  # rows without padding, as flash_attention_2 takes them
    if config.boolean("ds.adam_offload", "adam_offload", default=False):
        job["offload"] = "optimizer"
    if config.boolean("ds.use_liger_kernel", "use_liger_kernel", default=False):
        job["fused_kernels"] = FUSED_KERNELS  # AutoLigerKernelForCausalLM, whose loss needs labels
    if program == "train_dpo":
        for name in ("ref.offload", "ref_offload"):
            config.require_off(name)
        _note_reference(config)
        if stage == 3 and config.integer("ds.lora.rank", "lora_rank", default=0, least=0):
            raise config.unsupported(
                "ds.lora.rank" if config.has("ds.lora.rank") else "lora_rank",
                "with a second model under ZeRO-3 is not modelled yet; ds.zero_stage 2 is",
            )
        job |= {"task": "dpo", "reference": "model"}
    if program == "train_rm":
        _check_reward(config, stage)
        job["task"] = "reward"
    return job | read_method(config, dtype, stage)


def _check_reward(config: ConfigReader, stage: int) -> None:
    """What of a reward model was not compared with a run of its trainer."""
    for names in (
        ("ds.packing_samples", "packing_samples"),
        ("ds.load_in_4bit", "load_in_4bit"),
        ("ds.adam_offload", "adam_offload"),
    ):
        if config.boolean(*names, default=False):
            name = next(name for name in names if config.has(name))
            raise config.unsupported(name, "with train_rm is not modelled yet; without it, it is")
    if stage == 3:
        raise config.unsupported(
            "ds.zero_stage" if config.has("ds.zero_stage") else "zero_stage",
            "with train_rm is not modelled yet; ds.zero_stage 2 is",
        )
    config.read_keys |= {"model.compute_fp32_loss_enable", "compute_fp32_loss", "ds.value_head_prefix"}
    config.read_keys |= {"value_head_prefix", "model.loss_type", "loss", "model.margin_loss_enable", "margin_loss"}


def _note_reference(config: ConfigReader) -> None:
    """Note a reference that is another checkpoint."""
    name = config.string("ref.model_name_or_path", "ref_pretrain")
    if name not in (None, config.string("model.model_name_or_path", "pretrain")):
        key = "ref.model_name_or_path" if config.has("ref.model_name_or_path") else "ref_pretrain"
        config.note("doubt", key, "is estimated with the layers of the model that trains")


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=tuple(Program(f"openrlhf/cli/{name}.py") for name in TASKS),
    stops_at_unknown=lambda _: True,  # cli/train_*.py: argparse's parse_args
    marks=frozenset({"micro_train_batch_size", "train.micro_batch_size"}),
)
