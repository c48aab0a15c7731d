"""The `vramplan estimate` command that comes nearest to a job whose training step is not modelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job

FLAGS = {
    "task": "--task",
    "method": "--method",
    "lora_rank": "--lora-rank",
    "lora_targets": "--lora-targets",
    "lora_dtype": "--lora-dtype",
    "dtype": "--dtype",
    "quantize": "--quantize",
    "autocast": "--autocast",
    "optimizer": "--optimizer",
    "loop": "--loop",
    "images": "--images",
    "image_size": "--image-size",
    "min_pixels": "--min-pixels",
    "max_pixels": "--max-pixels",
    "max_tiles": "--max-tiles",
    "vision": "--vision",
    "projector": "--projector",
    "sequence_length": "--seq-len",
    "prompt_length": "--prompt-len",
    "reference": "--reference",
    "teacher": "--teacher",
    "divergence": "--divergence",
    "generated_by": "--generated-by",
    "num_generations": "--num-generations",
    "generate_with": "--generate-with",
    "reward_model": "--reward-model",
    "value_model": "--value-model",
    "ppo_trainer": "--ppo-trainer",
    "rollout_batch_size": "--rollout-batch-size",
    "vllm_share": "--vllm-share",
    "vllm_max_length": "--vllm-max-len",
    "vllm_tensor_parallel": "--vllm-tensor-parallel",
    "micro_batch_size": "--micro-batch",
    "gradient_accumulation_steps": "--accumulation",
    "batches": "--batches",
    "checkpointing": "--checkpointing",
    "attention": "--attention",
    "num_gpus": "--num-gpus",
    "strategy": "--strategy",
    "offload": "--offload",
}
"""Fields of a job -> flags of `vramplan estimate`, in the order in which they are written."""

OF_TOWERS = ("vision", "projector")
"""Fields of models with a vision tower."""
ALWAYS = ("autocast", "sequence_length")
"""Fields whose default the command line completes otherwise."""


PPO_NEAREST = (
    "its estimate: `vramplan estimate MODEL --gpu GPU --task ppo --value-model MODEL --reward-model MODEL --seq-len N"
    " --prompt-len N`"
)
"""What TRL's PPOTrainer is refused with where it is not read."""
FORMER_PPO_NEAREST = (
    "nearest, the same trainer as LLaMA-Factory runs it: `vramplan estimate MODEL --gpu GPU --task ppo --reward-model"
    " MODEL --seq-len N --prompt-len N`"
)
"""What PPOTrainer of TRL before 0.12 is refused with."""
DISTILLATION_NEAREST = (
    "nearest, with the logits of both models whole, which needs more than a loss by chunks: `vramplan estimate MODEL"
    " --gpu GPU --task gkd --teacher MODEL --seq-len N --prompt-len N`"
)
"""What TRL's other trainers with a teacher are refused with."""
BY_TILES = (
    "its estimate, with TRL's default divergence: `vramplan estimate MODEL --gpu GPU --task gkd --loss chunked"
    " --divergence reverse_kl --teacher MODEL --seq-len N --prompt-len N`"
)
"""What TRL's DistillationTrainer is refused with, whose settings are not read."""
ONLINE_NEAREST = (
    "nearest, with as many completions, a reference and a model that scores: `vramplan estimate MODEL --gpu GPU --task"
    " grpo --num-generations 2 --reference model --loss standard --reward-model MODEL --seq-len N --prompt-len N`"
)
"""What TRL's preference trainers that generate are refused with."""
NEAREST = {
    "PPOv2Trainer": PPO_NEAREST,
    "DistillationTrainer": BY_TILES,
    **dict.fromkeys(("GOLDTrainer", "MiniLLMTrainer"), DISTILLATION_NEAREST),
    **dict.fromkeys(("OnlineDPOTrainer", "XPOTrainer", "NashMDTrainer"), ONLINE_NEAREST),
}
"""TRL's trainers that are not read -> what they are refused with."""
GPU = "--gpu GPU"
"""What commands in errors have for the GPU, which those that name them do not know."""


@contextmanager
def on_gpu(gpu: Gpu) -> Iterator[None]:
    """Commands in errors name this GPU, so that they run as they stand."""
    try:
        yield
    except UnsupportedError as error:
        error.args = (error.text.replace(GPU, f"--gpu {gpu.name}"),)
        raise


def estimate_command(model: str, job: Mapping[str, Any]) -> str:
    """``vramplan estimate MODEL --gpu GPU ...`` with the fields of `job` that are no defaults.

    >>> estimate_command("qwen2.5-7b", {"method": "full", "sequence_length": 8192, "micro_batch_size": 1})
    'vramplan estimate qwen2.5-7b --gpu GPU --method full --seq-len 8192'
    """
    if str(job.get("strategy")).startswith("zero") and job.get("autocast") == job.get("dtype", "bf16"):
        job = {**job, "autocast": "none"}  # DeepSpeed casts the weights itself
    words = ["vramplan estimate", model or "MODEL", GPU]
    for field, flag in FLAGS.items():
        value = None if field in OF_TOWERS and "image_size" not in job else job.get(field)  # a model of text has none
        if value is None or (value == Job.model_fields[field].default and field not in ALWAYS):
            continue
        joined = ("x" if field == "image_size" else ",").join(map(str, value)) if isinstance(value, tuple) else value
        words.append(f"{flag} {joined}")
    return " ".join(words)


OF_PREFERENCES = {"ipo": "dpo", "rm": "reward"} | {name: name for name in ("dpo", "kto", "orpo", "cpo", "simpo")}
"""What frameworks call their preference training -> the task of TRL's own trainer."""


def refuse_task(
    config: ConfigReader, key: str, value: str, model: str, job: Mapping[str, Any], where: str = ""
) -> UnsupportedError:
    """The error for preference training by another trainer than TRL's own, whose estimate it names.

    Args:
        config: the configuration.
        key: the key that names the training.
        value: its value.
        model: the model's name.
        job: the fields of the job, read for supervised fine-tuning.
        where: where it is not read, if it is elsewhere, with a space behind it.
    """
    task = OF_PREFERENCES.get(value)
    if value == "ppo":
        return config.unsupported(key, f"is not read yet; {PPO_NEAREST}")
    if task is None:
        known = "; `vramplan estimate --task grpo` takes the settings of TRL's own" if value == "grpo" else ""
        return config.unsupported(key, f"is not read yet{known}")
    fields = {name: setting for name, setting in job.items() if name not in ("loss", "batches")} | {"task": task}
    nearest = estimate_command(model, fields)
    nearest += " --loss standard" if task == "dpo" else ""  # whole logits, as in the versions of TRL that they require
    return config.unsupported(key, f"{where}is not read yet; nearest, TRL's own trainer: {nearest}")
