"""What ms-swift's ``swift rlhf --rlhf_type ppo`` is refused with (3.12 and 4.6: rlhf_trainers/ppo_trainer.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.settings import ConfigReader

FOLLOWED = (
    "method", "lora_rank", "lora_targets", "lora_dtype", "dtype", "optimizer", "micro_batch_size", "attention",
    "gradient_accumulation_steps", "num_gpus",
)  # fmt: skip
"""Fields that TRL's trainer, whose loop runs, takes from a job."""


def refused(config: ConfigReader, model: str, job: Mapping[str, Any]) -> UnsupportedError:
    """The error with TRL's own PPO, whose loop ms-swift runs, as the nearest estimate.

    DeepSpeed shards two of the four models there, and adapters are on the value model too, which TRL trains whole.
    """
    fields = {name: job[name] for name in FOLLOWED if name in job}
    rewards = config.strings("reward_model")
    scorer = rewards[0] if rewards else "MODEL"
    fields |= {"task": "ppo", "autocast": "none", "value_model": scorer, "reward_model": scorer}
    fields["rollout_batch_size"] = config.integer("local_rollout_forward_batch_size", default=64)
    lengths = " --seq-len N --prompt-len N"
    if "sequence_length" in job:
        prompt = job["sequence_length"]
        new = config.integer("response_length", "max_new_tokens", "max_completion_length", default=512)
        fields |= {"prompt_length": prompt, "sequence_length": prompt + new}
        lengths = ""
    return config.unsupported(
        "rlhf_type",
        "is not read yet; nearest, TRL's own with all models whole on each GPU and a value model that trains whole,"
        f" which needs more: `{estimate_command(model, fields)}{lengths}`",
    )
