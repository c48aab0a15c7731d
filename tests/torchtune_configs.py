"""The table of the configurations that torchtune ships: vramplan/frameworks/readers/torchtune_configs.json.

`python -m tests.torchtune_configs` writes it anew, where torchtune is installed. It holds what changes memory in the
files of the recipes that are read; what is off or not set is left out.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.helpers import ROOT
from vramplan.frameworks.readers.torchtune_recipes import NAMES

FILE = ROOT / "vramplan/frameworks/readers/torchtune_configs.json"
KEYS = (
    "batch_size", "clip_grad_norm", "compile", "custom_sharded_layers", "dataset.packed", "dtype",
    "enable_activation_checkpointing", "enable_activation_offloading", "fsdp_cpu_offload", "fsdp_reshard_after_forward",
    "gradient_accumulation_steps", "loss._component_", "model._component_", "model.apply_lora_to_mlp",
    "model.apply_lora_to_output", "model.lora_alpha", "model.lora_attn_modules", "model.lora_dropout",
    "model.lora_rank", "model.quantize_base", "model.use_dora", "optimizer._component_", "optimizer.fused",
    "optimizer_in_bwd", "tensor_parallel_dim", "tokenizer.max_seq_len",
)  # fmt: skip
"""Settings that change memory, and the adapters' alpha."""


def folder() -> Path | None:
    """Where torchtune is installed; None if it is not."""
    package = importlib.util.find_spec("torchtune")
    return None if package is None or package.origin is None else Path(package.origin).parent


def settings_of(path: Path) -> dict[str, Any]:
    """The settings of a file that are in the table."""
    import yaml

    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = {}
    for key in KEYS:
        section, _, name = key.rpartition(".")
        holder = raw.get(section) or {} if section else raw
        value = holder.get(name)
        if value is not None and value is not False and value != 0:
            found[key] = value
    return found


def table(package: Path) -> dict[str, Any]:
    """The table of an installed torchtune: of each recipe what all of its files set alike, and what each sets."""
    registry = runpy.run_path(str(package / "_recipe_registry.py"))
    recipes: dict[str, Any] = {}
    for recipe in registry["get_all_recipes"]():
        if recipe.name not in NAMES:
            continue
        configs = package.parent / "recipes/configs"
        files = {one.name: settings_of(configs / one.file_path) for one in recipe.configs}
        first, *others = files.values()
        alike = {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
        own = {name: {key: found[key] for key in found if key not in alike} for name, found in files.items()}
        recipes[recipe.name] = {"alike": alike, "configs": own}
    return {"version": version("torchtune"), "recipes": recipes}


def as_text(content: dict[str, Any]) -> str:
    """The table as JSON, one line for each configuration."""
    recipes = []
    for recipe, row in content["recipes"].items():
        configs = ",\n".join(f"    {json.dumps(name)}: {json.dumps(own)}" for name, own in row["configs"].items())
        alike = json.dumps(row["alike"])
        recipes.append(f'  {json.dumps(recipe)}: {{\n   "alike": {alike},\n   "configs": {{\n{configs}\n   }}\n  }}')
    return f'{{\n "version": {json.dumps(content["version"])},\n "recipes": {{\n' + ",\n".join(recipes) + "\n }\n}\n"


if __name__ == "__main__":
    package = folder()
    if package is None:
        raise SystemExit("torchtune is not installed")
    FILE.write_text(as_text(table(package)), encoding="utf-8")
