"""axolotl's ``reward_model``, ``process_reward_model`` (0.19.0: core/builders/causal.py, schemas/validation.py)."""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers.axolotl_tasks import ENGINES, SINCE, TRL
from vramplan.frameworks.readers.trl_tasks import loss_of
from vramplan.frameworks.settings import ConfigReader
from vramplan.units import round_up

REWARDS = ("reward_model", "process_reward_model")
"""Keys that train something else than the next token, without ``rl``."""
MULTIPLE = 64
"""The collator pads to a multiple of it if `pad_to_sequence_len` is on, which it is with `reward_model`."""
CLASSIFIERS = ("SequenceClassification", "TokenClassification")


def is_reward(config: ConfigReader) -> bool:
    """Whether a reward model trains.

    Raises:
        UnsupportedError: for a classifier that is none.
    """
    if any(config.boolean(name, default=False) for name in REWARDS):
        return True
    config.require_off("num_labels", why="without reward_model is not modelled")
    named = config.string("model_type") or ""
    if any(name in named for name in CLASSIFIERS):
        raise config.unsupported("model_type", "without reward_model: true is not modelled")
    return False


def reward_fields(config: ConfigReader, version: str, model: str, job: dict[str, Any]) -> dict[str, Any]:
    """Fields of a job that a reward model changes; `job` has been read for supervised fine-tuning.

    It is TRL's RewardTrainer with the model, the adapters and the padding of axolotl.

    Raises:
        UnsupportedError: for training, or a setting, that is not modelled.
    """
    shared = {name: value for name, value in job.items() if name not in ("loss", "batches")}
    if config.boolean("process_reward_model", default=False):
        nearest = estimate_command(model, shared | {"task": "token_classification"})
        raise config.unsupported(
            "process_reward_model", f"is TRL's PRMTrainer, not modelled yet; nearest, a label for each token: {nearest}"
        )
    is_read = at_least(version, SINCE) and job.get("strategy", "ddp") in ENGINES
    if not is_read or job.get("quantize", "none") != "none":
        nearest = estimate_command(model, shared | {"task": "reward"})
        what = f"before {SINCE}, under FSDP and ZeRO-3, and quantized"
        raise config.unsupported("reward_model", f"{what} is not read yet; nearest, TRL's own trainer: {nearest}")
    if job.get("loss", "standard") != "standard" or job.get("fused_kernels"):
        raise config.unsupported("plugins", "with reward_model is not modelled yet; without it the rest is read")
    config.require_off("num_labels", 1, why="with reward_model is not modelled: it has one number for each text")
    config.read_keys |= {"center_rewards_coefficient", "model_type"}
    length = job["sequence_length"]
    if config.boolean("pad_to_sequence_len", default=True):
        length = round_up(length, config.integer("pad_to_multiple_of", default=MULTIPLE))
    return {"task": "reward", "loss": loss_of("reward", TRL), "batches": "padded", "sequence_length": length}
