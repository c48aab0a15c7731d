"""The estimates that come nearest to OpenRLHF's trainings that are not modelled (0.11.2, and flags without dots)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.readers.trainer_arguments import num_launched_processes
from vramplan.frameworks.settings import ConfigReader

TASKS = {"train_sft": None, "train_dpo": "dpo", "train_rm": "reward", "train_kto": "kto", "train_ppo_ray": "grpo"}
"""Modules of openrlhf.cli -> the task of the nearest job."""
REFERRING = ("dpo", "kto")
MICRO_BATCHES = {"train_rm": 1, "train_ppo_ray": 1}
"""train.micro_batch_size if it is not set; 8 in the other programs."""
SHORT = ("train_dpo", "train_rm", "train_kto")
"""Programs whose samples have up to 512 tokens if nothing else is set; 2048 in the others."""


def nearest(config: ConfigReader, num_gpus: int, program: str) -> str:
    """What is nearest to a command, its `vramplan estimate` line, and what that leaves out."""
    model = config.string("model.model_name_or_path", "actor.model_name_or_path", "pretrain") or "MODEL"
    job = _job(config, num_gpus, program)
    left_out = list(_left_out(config, program))
    if job.get("offload") and job["task"] not in (None, "grpo"):
        del job["offload"]
        left_out.append("the optimizer in host memory")
    if job["task"] in REFERRING and config.boolean("ref.offload", "ref_offload", default=False):
        job["reference"] = "precomputed"
        left_out.append("the reference, which comes from host memory")
    elif job["task"] in REFERRING and job["strategy"] == "zero3" and job["method"] != "full":
        job["reference"] = "adapters_off"
        left_out.append("the second model")
    whose = "transformers' step" if job["task"] is None else "TRL's trainer"
    without = f" (without {', '.join(left_out)})" if left_out else ""
    return f"nearest, with {whose}{without}: {estimate_command(model, job)}"


def _left_out(config: ConfigReader, program: str) -> Iterator[str]:
    """What takes memory on the same GPUs and is not in the nearest estimate."""
    if program != "train_ppo_ray":
        return
    shares = config.boolean("train.colocate_all", "colocate_all_models", default=False)
    if config.lowercase("algo.advantage.estimator", "advantage_estimator", default="gae") == "gae" and shares:
        yield "PPO's critic, a second model that trains"
    if config.string("reward.model_name_or_path", "reward_pretrain") and shares:
        yield "the reward model"
    if config.boolean("train.dynamic_batch_enable", "use_dynamic_batch", default=False):
        yield "batches up to a budget of tokens"


def _job(config: ConfigReader, num_gpus: int, program: str) -> dict[str, Any]:
    task = TASKS[program]
    gpus = _num_gpus(config, num_gpus, task)
    usual = MICRO_BATCHES.get(program, 8)
    micro_batch = config.integer("train.micro_batch_size", "micro_train_batch_size", default=usual)
    batch = config.integer("train.batch_size", "train_batch_size", default=128)
    rank = config.integer("ds.lora.rank", "lora_rank", default=0, least=0)
    stage = config.integer("ds.zero_stage", "zero_stage", default=2, least=0)
    attention = config.lowercase("ds.attn_implementation", "attn_implementation", default="flash")
    job: dict[str, Any] = {
        "task": task,
        "method": "lora" if rank else "full",
        "lora_rank": rank or None,
        "quantize": "nf4" if rank and config.boolean("ds.load_in_4bit", "load_in_4bit", default=False) else "none",
        "autocast": "none",
        "sequence_length": config.integer("data.max_len", "max_len", default=512 if program in SHORT else 2048),
        "micro_batch_size": micro_batch,
        "gradient_accumulation_steps": max(1, batch // (micro_batch * gpus)),
        "num_gpus": gpus,
        "strategy": f"zero{stage}" if stage else "ddp",
        "checkpointing": "none",
        "attention": "flash" if "flash" in attention else "sdpa",
    }
    if config.boolean("model.gradient_checkpointing_enable", "actor.gradient_checkpointing_enable",
                      "gradient_checkpointing", default=False):  # fmt: skip
        job["checkpointing"] = "full"
    if config.boolean("ds.adam_offload", "adam_offload", default=False):
        job["offload"] = "optimizer"
    if task in REFERRING:
        job["reference"] = "model"
    return job | (_generation(config) if task == "grpo" else {})


def _generation(config: ConfigReader) -> dict[str, Any]:
    """VLLM on the training's GPUs if all models share them, else on others; the reference on them if it shares them."""
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
    shares = config.boolean("train.colocate_all", "colocate_all_models", default=False)
    if shares and not config.boolean("train.async_enable", "async_train", default=False):
        sleeps = config.boolean("vllm.enable_sleep", "vllm_enable_sleep", default=False)
        fields["generate_with"] = "vllm_sleep" if sleeps else "vllm"
        fields["vllm_share"] = config.number("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization", default=0.95)
        fields["vllm_tensor_parallel"] = config.integer(
            "vllm.tensor_parallel_size", "vllm_tensor_parallel_size", default=1
        )
        # its max_model_len (0.11.2, cli/train_ppo_ray.py: create_vllm_engines)
        fields["vllm_max_length"] = fields.get("sequence_length") or config.integer(
            "data.max_len", "max_len", default=2048
        )
    is_beside = shares or config.boolean("train.colocate_actor_ref", "colocate_actor_ref", default=False)
    refers = config.number("algo.kl.init_coef", "init_kl_coef", default=0.01) > 0
    offloads = config.boolean("ref.offload", "ref_reward_offload", default=False)
    if is_beside and refers and not offloads:
        fields["reference"] = "model"
    return fields


def _num_gpus(config: ConfigReader, num_gpus: int, task: str | None) -> int:
    if task != "grpo":
        return num_launched_processes(config, num_gpus)
    each = config.integer("actor.num_gpus_per_node", "actor_num_gpus_per_node", default=8)
    return each * config.integer("actor.num_nodes", "actor_num_nodes", default=1)
