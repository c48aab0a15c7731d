"""What TRL's trainers make of a model that has adapters already: merged, copied for the reference, or two sets.

Read from trl 0.15 to 1.16 (trainer/*_trainer.py; 1.2 to 1.8 for KTO: experimental/kto).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers.saved_adapters import ADAPTER_NAME_KEY, IN_SCRIPTS, MERGED_KEY, SECOND_KEY, are_alike
from vramplan.frameworks.settings import ConfigReader, shown

MERGES_UNTIL = "0.27"
"""The first version that stops at a model with adapters and a peft_config; before, it merged them (trainer/*.py)."""


def check_merged(config: ConfigReader, version: str) -> None:
    """Adapters that a script loads and hands its trainer together with new ones: merged, or an error.

    Raises:
        ConfigError: in versions that stop at both.
    """
    if config.boolean(MERGED_KEY, default=False) and at_least(version, MERGES_UNTIL):
        raise ConfigError(
            f"{config.place(MERGED_KEY)}: TRL {version} stops at a model with adapters beside peft_config: merge them"
            " before (merge_and_unload), or leave peft_config out"
        )


COPIES_SINCE = {"dpo": "0.29", "kto": "1.2", "grpo": "0.27", "rloo": "0.27"}
"""The first version that copies the adapters of a PeftModel, for the reference (trainer/*_trainer.py: add_adapter)."""


def copied_adapters(config: ConfigReader, task: str, version: str, refers: bool) -> dict[str, Any]:
    """The reference that TRL makes of the adapters of a model that has some: a frozen copy, in fp32 by PEFT's default.

    `refers`: whether the loss has a reference, without which RLOO makes the copy all the same.

    Raises:
        ConfigError: for adapters of another name than PEFT's default, at which TRL stops.
        UnsupportedError: for a copy that nothing uses.
    """
    copies = config.boolean("peft_model", default=False) and at_least(version, COPIES_SINCE[task])
    name = config.string(ADAPTER_NAME_KEY) or "default"
    if not copies or (task == "grpo" and not refers):
        return {}
    if name != "default":
        raise ConfigError(
            f"{config.place(ADAPTER_NAME_KEY)}: TRL {version} stops at adapters that are not called default ({name})"
        )
    if not refers:
        raise config.unsupported("beta", f"of 0: TRL {version} copies a model's adapters all the same; not modelled")
    return {"reference": "frozen_adapters"}


def second_adapters(config: ConfigReader, job: Mapping[str, Any]) -> dict[str, Any]:
    """Adapters that a script loads beside those that train, for the reference (up to 0.28: ref_adapter_name).

    Raises:
        ConfigError: if they are not there, or which they are is not known.
        UnsupportedError: for others than those that train, and for some that nothing uses.
    """
    second = config.source.settings.get(SECOND_KEY)
    config.read_keys |= {SECOND_KEY, "model_adapter_name"}
    if not config.has("ref_adapter_name"):
        if second is not None:
            raise UnsupportedError(
                f"{second.place}: adapters beside those that train, which ref_adapter_name does not name, are not"
                " modelled; leave them out"
            )
        return {}
    name = config.string("ref_adapter_name")
    if second is None or second.value.get("name") != name:
        raise ConfigError(f"{config.place('ref_adapter_name')}: ref_adapter_name: no adapters {name} are loaded")
    own = config.string(ADAPTER_NAME_KEY) or "default"
    trained = config.string("model_adapter_name") or "default"
    if own != trained:
        raise ConfigError(
            f"{config.place('model_adapter_name')}: model_adapter_name: the adapters {own} are loaded, TRL goes back to"
            f" {trained}"
        )
    folder = str(second.value.get("folder"))
    if not are_alike(config, IN_SCRIPTS, folder, job):
        raise UnsupportedError(
            f"{second.place}: {shown(folder)}: adapters of a reference that are not known to have rank and layers of"
            " those that train are not modelled; load both from one folder"
        )
    return {"reference": "frozen_adapters"}
