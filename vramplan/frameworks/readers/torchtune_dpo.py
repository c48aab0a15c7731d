"""torchtune's DPO recipes (0.6.1: recipes/lora_dpo_single_device.py, rlhf/loss/dpo.py)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.settings import ConfigReader

RECIPE = "lora_dpo_single_device"
SHARDED = ("lora_dpo_distributed", "full_dpo_distributed")
"""Recipes on several GPUs, whose FSDP is not modelled."""
LOSSES = ("torchtune.rlhf.loss.DPOLoss", "torchtune.rlhf.loss.RSOLoss")
"""Losses that differ in numbers for each pair."""
SEVERAL_GPUS = 2
"""What an estimate of a sharded recipe takes if nothing says how many GPUs there are."""


def is_dpo(config: ConfigReader) -> bool:
    """Whether the recipe or the loss is of preferences; a recipe without its configuration is refused before."""
    by_loss = str(config.string("loss._component_") or "").startswith(LOSSES)
    return config.has("batch_size") and (by_loss or config.string("recipe") in (RECIPE, *SHARDED))


def check_recipe(config: ConfigReader) -> None:
    """Check that the recipe trains by preferences, or note which is taken.

    Raises:
        UnsupportedError: for another recipe.
    """
    recipe = config.string("recipe")
    if recipe is None:
        config.note("default", "recipe", f"not known: {RECIPE}, one GPU, is taken")
    elif recipe not in (RECIPE, *SHARDED):
        raise config.unsupported("recipe", f"does not train with {config.string('loss._component_')}")


def dpo_fields(config: ConfigReader, model: str, job: dict[str, Any], num_gpus: int) -> dict[str, Any]:
    """What DPO changes in a job that has been read for supervised fine-tuning.

    Raises:
        UnsupportedError: for a recipe that shards the model, with the nearest job of TRL; for another loss.
    """
    recipe = config.string("recipe")
    is_sharded = recipe in SHARDED or (recipe is None and (num_gpus > 1 or job["method"] == "full"))
    if is_sharded:
        raise _refused_sharded(config, model, job, num_gpus)
    if job["method"] != "lora":
        raise config.unsupported("model._component_", f"has no adapters, without which {RECIPE} stops")
    loss = config.string("loss._component_")
    if loss is not None and loss not in LOSSES:
        raise config.unsupported("loss._component_", f"is not modelled yet; modelled: {', '.join(LOSSES)}")
    for name in ("loss.beta", "loss.label_smoothing", "loss.gamma"):
        config.read_keys.add(name)
    return {"task": "dpo", "loss": "scaled_log_softmax"}


def _refused_sharded(config: ConfigReader, model: str, job: dict[str, Any], num_gpus: int) -> UnsupportedError:
    """The error for the recipes on several GPUs, with TRL's own trainer under FSDP as the nearest."""
    gpus = config.integer("nproc_per_node", default=max(num_gpus, SEVERAL_GPUS))
    nearest = {name: one for name, one in job.items() if name not in ("batches", "loop", "loss")}
    nearest |= {"task": "dpo", "strategy": "fsdp", "num_gpus": gpus, "lora_dtype": None}
    of_full = " but fp32 weights" if job["method"] == "full" and job["dtype"] != "fp32" else ""
    key = "recipe" if config.has("recipe") else "loss._component_"
    return config.unsupported(
        key,
        "by FSDP is not modelled yet: it holds all logits in fp32 up to five times, the reference's until the next"
        f" step; nearest, TRL's own, which holds fewer{of_full}: {estimate_command(model, nearest)} --loss standard",
    )
