"""OpenRLHF's ``openrlhf.cli.train_*`` (0.11.2), with the flags from before they had dots; recognised, not estimated.

It runs DeepSpeed by a loop of its own (openrlhf/utils/deepspeed.py), takes log-probabilities from whole logits in fp32,
and in preference training keeps a second model as the reference. The nearest job of TRL or transformers is named.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.trainer_arguments import num_launched_processes
from vramplan.frameworks.settings import ConfigReader

TASKS = {"train_sft": None, "train_dpo": "dpo", "train_rm": "reward", "train_kto": "kto", "train_ppo_ray": "grpo"}
"""Modules of openrlhf.cli -> the task of the nearest job."""
REFERRING = ("dpo", "kto")


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """Nothing: the estimate of the nearest job is named instead.

    Raises:
        UnsupportedError: always.
    """
    program = PurePosixPath(config.source.program).stem
    if program not in TASKS:
        raise UnsupportedError(
            f"{config.source.where}: settings of OpenRLHF without the command that takes them:"
            " give check the line of python -m openrlhf.cli.train_..."
        )
    task = TASKS[program]
    job = _job(config, num_gpus, task)
    model = config.string("model.model_name_or_path", "actor.model_name_or_path", "pretrain") or "MODEL"
    whose = "transformers' step" if task is None else "TRL's trainer"
    raise UnsupportedError(
        f"{config.source.where}: OpenRLHF's own step, with fp32 log-probabilities of whole logits, is not modelled yet;"
        f" nearest, with {whose}: {estimate_command(model, job)}"
    )


def _job(config: ConfigReader, num_gpus: int, task: str | None) -> dict[str, Any]:
    gpus = _num_gpus(config, num_gpus, task)
    micro_batch = config.integer("train.micro_batch_size", "micro_train_batch_size", default=1)
    batch = config.integer("train.batch_size", "train_batch_size", default=128)
    rank = config.integer("ds.lora.rank", "lora_rank", default=0, least=0)
    stage = config.integer("ds.zero_stage", "zero_stage", default=2, least=0)
    flash = config.lowercase("ds.attn_implementation", "attn_implementation", default="")
    job: dict[str, Any] = {
        "task": task,
        "method": "lora" if rank else "full",
        "lora_rank": rank or None,
        "quantize": "nf4" if config.boolean("ds.load_in_4bit", "load_in_4bit", default=False) else "none",
        "autocast": "none",
        "sequence_length": config.integer("data.max_len", "max_len", default=2048),
        "micro_batch_size": micro_batch,
        "gradient_accumulation_steps": max(1, batch // (micro_batch * gpus)),
        "num_gpus": gpus,
        "strategy": f"zero{stage}" if stage else "ddp",
        "checkpointing": "none",
        "attention": "sdpa",
    }
    if config.boolean("model.gradient_checkpointing_enable", "actor.gradient_checkpointing_enable",
                      "gradient_checkpointing", default=False):  # fmt: skip
        job["checkpointing"] = "full"
    if config.boolean("flash_attn", default=False) or "flash" in flash:
        job["attention"] = "flash"
    if config.boolean("ds.adam_offload", "adam_offload", default=False):
        job["offload"] = "optimizer"
    if task in REFERRING:
        job["reference"] = "model"
    return job | (_generation(config) if task == "grpo" else {})


def _generation(config: ConfigReader) -> dict[str, Any]:
    """VLLM on the training's GPUs if all models share them, else on others."""
    fields: dict[str, Any] = {
        "num_generations": max(2, config.integer("rollout.n_samples_per_prompt", "n_samples_per_prompt", default=1)),
        "generate_with": "vllm_server",
    }
    prompt = config.integer("prompt_max_len", default=1024)
    answer = config.integer("rollout.max_new_tokens", "generate_max_len", default=1024)
    if not config.has("data.max_len", "max_len"):
        fields["sequence_length"] = prompt + answer
        fields["prompt_length"] = prompt
    else:
        fields["prompt_length"] = max(1, config.integer("data.max_len", "max_len", default=2048) - answer)
    if config.boolean("train.colocate_all", "colocate_all_models", default=False):
        sleeps = config.boolean("vllm.enable_sleep", "vllm_enable_sleep", default=False)
        fields["generate_with"] = "vllm_sleep" if sleeps else "vllm"
        fields["vllm_share"] = config.number("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization", default=0.95)
    return fields


def _num_gpus(config: ConfigReader, num_gpus: int, task: str | None) -> int:
    if task != "grpo":
        return num_launched_processes(config, num_gpus)
    each = config.integer("actor.num_gpus_per_node", "actor_num_gpus_per_node", default=8)
    return each * config.integer("actor.num_nodes", "actor_num_nodes", default=1)


FRAMEWORK = Framework(
    name="openrlhf",
    read=read,
    programs=tuple(Program(f"openrlhf/cli/{name}.py") for name in TASKS),
    marks=frozenset({"micro_train_batch_size", "train.micro_batch_size"}),
)
