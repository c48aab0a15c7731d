"""torchtune's recipes (0.6.1, recipes/): which one a configuration is for, and what those on several GPUs add to a job.

All shard by torch's ``fully_shard`` (training/_distributed.py: shard_model): layers, what custom_sharded_layers names,
and the rest, in the dtype that they train in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vramplan.errors import ConfigError, setting
from vramplan.frameworks.parsed_config import num_nodes
from vramplan.frameworks.readers.trainer_arguments import is_launched, num_processes
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.catalog import find_model


class Recipe(NamedTuple):
    """What a recipe trains."""

    name: str
    method: str
    prefers: bool
    """Whether it trains by preferences (DPO), not by the next token."""
    shards: bool
    """Whether it is for several GPUs."""


RECIPES = (
    Recipe("full_finetune_single_device", "full", prefers=False, shards=False),
    Recipe("lora_finetune_single_device", "lora", prefers=False, shards=False),
    Recipe("lora_dpo_single_device", "lora", prefers=True, shards=False),
    Recipe("full_finetune_distributed", "full", prefers=False, shards=True),
    Recipe("lora_finetune_distributed", "lora", prefers=False, shards=True),
    Recipe("lora_dpo_distributed", "lora", prefers=True, shards=True),
    Recipe("full_dpo_distributed", "full", prefers=True, shards=True),
)
"""Those that are read."""
NAMES = tuple(recipe.name for recipe in RECIPES)
UNREAD = (
    ("ppo", "is reinforcement training, which is not modelled yet"),
    ("grpo", "is reinforcement training, which is not modelled yet"),
    ("knowledge_distillation", "is distillation, which is not modelled yet"),
    ("qat", "is quantization-aware training, which is not modelled yet"),
)
"""Parts of the names of other recipes, and what they do."""
LOSSES = ("torchtune.rlhf.loss.DPOLoss", "torchtune.rlhf.loss.RSOLoss")
"""Losses of preferences, which differ in numbers for each pair."""
ALONE = ("tok_embeddings", "output")
"""custom_sharded_layers of torchtune's own configurations."""
OF_SEVERAL_GPUS = ("custom_sharded_layers", "fsdp_cpu_offload")
"""Keys that recipes on one GPU do not read, and that change memory."""


def refuse_unread(config: ConfigReader) -> None:
    """Refuse a recipe that is not read, whatever its configuration is."""
    name = config.string("recipe")
    if name is not None and name not in NAMES:
        what = next((text for part, text in reversed(UNREAD) if part in name), "is not read yet")
        raise config.unsupported("recipe", f"{what}; read: {', '.join(NAMES)}")


def recipe_of(config: ConfigReader, method: str, num_gpus: int) -> Recipe:
    """The recipe of the command, or for a file on its own the one that its model, its loss and the GPUs fit.

    Raises:
        ConfigError: if the command's recipe does not go with the model or the loss, or needs several GPUs.
        UnsupportedError: for a loss of preferences that is not modelled.
    """
    name, loss = config.string("recipe"), str(config.string("loss._component_") or "")
    prefers = loss.startswith("torchtune.rlhf.loss.")
    if name is None:
        return _recipe_that_fits(config, method, prefers, num_gpus)
    recipe = next(one for one in RECIPES if one.name == name)
    if recipe.prefers and not prefers and loss:
        raise config.unsupported("loss._component_", f"is no loss of {name}; modelled: {', '.join(LOSSES)}")
    if prefers and not recipe.prefers:
        raise config.unsupported("recipe", f"does not train with {loss}")
    if recipe.method != method:
        raise ConfigError(f"recipe {name} does not go with a model that is built for {method}")
    launched = next((key for key in ("nproc_per_node", "nnodes") if key in config.source.settings), None)
    if launched is not None and not recipe.shards:  # _cli/run.py: _run_cmd
        several = next(one.name for one in RECIPES if one[1:3] == recipe[1:3] and one.shards)
        raise ConfigError(
            f"{config.place(launched)}: {name} runs on one GPU, torchtune stops at flags of torchrun; leave them out,"
            f" or run {several}"
        )
    return recipe


def _recipe_that_fits(config: ConfigReader, method: str, prefers: bool, num_gpus: int) -> Recipe:
    count = _count(config, num_gpus)
    fitting = [one for one in RECIPES if (one.method, one.prefers) == (method, prefers)]
    on = [key for key in OF_SEVERAL_GPUS if not config.is_off(key)]
    if count == 1 and (on or all(one.shards for one in fitting)):
        name = fitting[-1].name
        what = f"{config.place(on[0])}: {on[0]} is" if on else f"{config.source.where}: {name} is"
        raise ConfigError(f"{what} for several GPUs; say how many, {setting('num_gpus', 2)}")
    recipe = next(one for one in fitting if one.shards == (count > 1))
    config.note("default", "recipe", f"not known: {recipe.name}, {count} GPU{'s' * (count > 1)}, is taken")
    return recipe


def _count(config: ConfigReader, num_gpus: int) -> int:
    """GPUs by torchrun's flags, or those of the machine."""
    return num_processes(config, num_gpus) if is_launched(config) else num_gpus


def preference_fields(config: ConfigReader) -> dict[str, Any]:
    """What DPO changes in a job that has been read for supervised fine-tuning.

    Raises:
        UnsupportedError: for another loss.
    """
    loss = config.string("loss._component_")
    if loss is not None and loss not in LOSSES:
        raise config.unsupported("loss._component_", f"is not modelled yet; modelled: {', '.join(LOSSES)}")
    for name in ("loss.beta", "loss.label_smoothing", "loss.gamma"):
        config.read_keys.add(name)
    return {"task": "dpo", "loss": "scaled_log_softmax"}


def sharded_fields(config: ConfigReader, recipe: Recipe, model: str, num_gpus: int) -> dict[str, Any]:
    """How the recipe shares the work of a model.

    Raises:
        ConfigError: if there is one GPU.
        UnsupportedError: if layers outside of the model's own are sharded in a way that is not modelled.
    """
    config.read_keys |= {*OF_SEVERAL_GPUS, "fsdp_reshard_after_forward"}
    count = _count(config, num_gpus)
    if count == 1:
        raise ConfigError(
            f"{config.place('recipe')}: {recipe.name} shards the model over several GPUs; say how many: tune run"
            f" --nproc_per_node 2, or {setting('num_gpus', 2)}"
        )
    optimizer = str(config.string("optimizer._component_") or "")
    if optimizer.startswith(("bitsandbytes", "torchao")):
        raise config.unsupported(
            "optimizer._component_", "on sharded weights was not compared with a run; torch.optim.AdamW was"
        )
    fsdp = {
        "wraps_embeddings": _shards_alone(config, model),
        "reshard_after_forward": config.boolean("fsdp_reshard_after_forward", default=True),
        "sync_each_batch": True,
    }
    if fsdp["reshard_after_forward"] and not fsdp["wraps_embeddings"]:
        of_reference = ", those of the reference for good" if recipe.prefers and recipe.method == "full" else ""
        config.note(
            "doubt",
            "PyTorch",
            "version: 2.8 or newer is counted; an older one keeps embedding and head gathered until"
            f" the next backward{of_reference}",
        )
    offload = {"offload": "all"} if config.boolean("fsdp_cpu_offload", default=False) else {}
    return {"strategy": "fsdp", "num_gpus": count, "fsdp": fsdp, **num_nodes(config, count), **offload}


def _shards_alone(config: ConfigReader, model: str) -> bool:
    """Whether embedding and head are sharded by themselves; a tied head is no module, and has no name."""
    names = set(config.strings("custom_sharded_layers"))
    spec = find_model(model)
    if spec is not None and spec.config.get("tie_word_embeddings"):
        if "tok_embeddings" in names:
            raise config.unsupported(
                "custom_sharded_layers",
                "names the embedding, whose weight the head of this model shares: it would multiply by a shard, and the"
                " run stop; leave it out",
            )
        return False
    if names not in (set(), {*ALONE}):
        raise config.unsupported(
            "custom_sharded_layers", f"is not modelled yet; modelled: [{', '.join(ALONE)}], or none"
        )
    return bool(names)
