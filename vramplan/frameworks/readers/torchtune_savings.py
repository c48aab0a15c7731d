"""torchtune's settings that save memory for time: an optimizer in backward, activations on the host (0.6.1)."""

from __future__ import annotations

from vramplan.errors import ConfigError
from vramplan.frameworks.readers.torchtune_recipes import Recipe
from vramplan.frameworks.settings import ConfigReader

IN_BACKWARD, OFFLOADING = "optimizer_in_bwd", "enable_activation_offloading"


def fields(config: ConfigReader, recipe: Recipe) -> dict[str, bool]:
    """The fields of the job that they set.

    Raises:
        ConfigError: for a setting at which torchtune stops.
        UnsupportedError: for one that was not compared with a run of the recipe.
    """
    return _in_backward(config, recipe) | _offloading(config, recipe)


def _in_backward(config: ConfigReader, recipe: Recipe) -> dict[str, bool]:
    if recipe.method == "lora" or not config.boolean(IN_BACKWARD, default=False):  # recipes of adapters do not read it
        config.read_keys.add(IN_BACKWARD)
        return {}
    if recipe.prefers or config.boolean("fsdp_cpu_offload", default=False):
        beside = f"in {recipe.name}" if recipe.prefers else "with fsdp_cpu_offload"
        raise config.unsupported(IN_BACKWARD, f"{beside} was not compared with a run; leave it out")
    for key, least in (("gradient_accumulation_steps", 1), ("clip_grad_norm", None)):
        value = config.get(key)
        if value is not None and value.value is not least and str(value.value) != str(least):
            raise ConfigError(
                f"{config.place(key)}: {key} {value.value} with {IN_BACKWARD}: torchtune stops at it; set"
                f" {key}={'null' if least is None else least}, or {IN_BACKWARD}=False"
            )
    return {"optimizer_in_backward": True}


def _offloading(config: ConfigReader, recipe: Recipe) -> dict[str, bool]:
    if not config.boolean(OFFLOADING, default=False):
        return {}
    if recipe.prefers:
        raise config.unsupported(
            OFFLOADING, f"in {recipe.name} is not modelled yet; it is in the recipes for supervised fine-tuning"
        )
    if not config.boolean("enable_activation_checkpointing", default=False):
        raise ConfigError(
            f"{config.place(OFFLOADING)}: {OFFLOADING} without enable_activation_checkpointing: torchtune stops at it"
        )
    return {"offloads_activations": True}
