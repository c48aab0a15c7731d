"""Adapters that a script loads by one of PEFT's classes: which, and whether they train (peft 0.21, peft_model.py)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.readers.saved_adapters import BASE_KEY
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import Call, Script, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN

ADAPTED = ("PeftModel", "PeftModelForCausalLM", "AutoPeftModelForCausalLM", "AutoPeftModel")
"""Classes of PEFT that load adapters from a folder."""
WITH_BASE = ("AutoPeftModelForCausalLM", "AutoPeftModel")
"""Those that load the model too, which the adapters' own file names (auto.py)."""
ARGUMENTS = ("adapter_name", "is_trainable", "config", "autocast_adapter_dtype")
"""Arguments behind the folder, in their order; those of WITH_BASE end with config."""


OF_BASE = ".base_model_name_or_path"
"""The attribute of a PeftConfig that names the model."""
OF_LORA = re.compile(r"""["'][._]?lora_?["'] in \w+(\.lower\(\))?""")
"""A test of a parameter's name that adapters alone pass."""


class SavedCall(NamedTuple):
    """Adapters that a script loads to train on."""

    folder: ConfigValue
    """The folder or Hub id; with the mark of what is not known."""
    name: str
    """What the script calls them (adapter_name)."""


class SecondCall(NamedTuple):
    """Adapters that a script loads beside those that train."""

    call: Call
    folder: ConfigValue
    name: str


def class_of(call: Call) -> str:
    """AutoModelForCausalLM of transformers.AutoModelForCausalLM.from_pretrained."""
    return call.name.rpartition(".")[0].rpartition(".")[2]


def saved_call(thing: Thing) -> SavedCall:
    """The adapters that an object of PEFT's classes loads.

    Raises:
        ConfigError: if they are frozen, or if that or their folder is not known.
        UnsupportedError: for arguments that are not modelled.
    """
    call, cls = thing.call, class_of(thing.call)
    first = 0 if cls in WITH_BASE else 1
    folder = folder_of(call)
    name, trainable, config, casts = (
        _argument(call, number, argument) for number, argument in enumerate(ARGUMENTS, first + 1)
    )
    if config is not None and config.value is not None:
        raise UnsupportedError(f"{config.place}: {cls}(config=...) is not read yet; leave it to the adapters' own file")
    if casts is not None and casts.value is not True:
        raise UnsupportedError(f"{casts.place}: {cls}(autocast_adapter_dtype=...) is not modelled yet; leave it out")
    called = "default" if name is None else name.value
    if folder is None or not isinstance(called, str) or UNKNOWN in called:
        raise ConfigError(f"{call.place}: which adapters {cls} loads is not known without running the script")
    _check_trainable(thing, trainable)
    return SavedCall(folder, called)


def second_call(call: Call) -> SecondCall:
    """The adapters that ``PeftModel.load_adapter`` loads beside others, frozen.

    Raises:
        ConfigError: if which they are is not known.
        UnsupportedError: if they train too, or are cast otherwise.
    """
    folder, name, trainable = (
        _argument(call, number, argument) for number, argument in enumerate(("model_id", *ARGUMENTS[:2]))
    )
    if folder is None or name is None or not isinstance(name.value, str) or UNKNOWN in name.value:
        raise ConfigError(f"{call.place}: which adapters load_adapter loads is not known without running the script")
    if trainable is not None and trainable.value is not False:
        raise UnsupportedError(f"{call.place}: load_adapter(is_trainable=...): two sets that train are not modelled")
    if "autocast_adapter_dtype" in call.keywords:
        raise UnsupportedError(f"{call.place}: load_adapter(autocast_adapter_dtype=...) is not modelled yet")
    return SecondCall(call, folder, name.value)


def folder_of(call: Call) -> ConfigValue | None:
    """The folder or Hub id that a call of from_pretrained names; None if it names none."""
    folder = _argument(call, class_of(call) not in WITH_BASE, "model_id", "pretrained_model_name_or_path")
    inner = call.keywords.get("subfolder")
    if folder is None:
        return None
    path = folder.value if inner is None or inner.value is None else f"{folder.value}/{inner.value}"
    return ConfigValue(path, call.place)


def _argument(call: Call, number: int, *names: str) -> ConfigValue | None:
    value = next((call.keywords[name] for name in names if name in call.keywords), None)
    if value is None and number < len(call.positional):
        return ConfigValue(call.positional[number], call.place)
    return value


def named_by_adapters(script: Script, saved: SavedCall | None, settings: dict[str, Any]) -> dict[str, Any]:
    """The model's name from the adapters' own file: ``PeftConfig.from_pretrained(FOLDER).base_model_name_or_path``."""
    name = settings.get("model_name_or_path")
    if saved is None or name is None or not str(name.value).endswith(OF_BASE):
        return settings
    configs = [call for call in script.named("from_pretrained") if class_of(call) in ("PeftConfig", "LoraConfig")]
    folders = [call.positional[:1] for call in configs]
    if not folders or folders != [[saved.folder.value]] * len(folders):
        return settings
    others = {key: value for key, value in settings.items() if key != "model_name_or_path"}
    return others | {BASE_KEY: saved.folder}


def is_for_adapters(call: Call) -> bool:
    """Whether requires_grad is set to True on the parameters whose names have "lora", which are those of adapters."""
    named = call.name.startswith(".named_parameters()") and call.positional == [True]
    return named and OF_LORA.fullmatch(call.condition) is not None


def _check_trainable(thing: Thing, trainable: ConfigValue | None) -> None:
    """Refuse adapters that stay frozen: without is_trainable, unless set_adapter makes them train."""
    value = False if trainable is None else trainable.value
    if value is True or any(name == ".set_adapter" and certain for name, _, certain in thing.history):
        return
    cls, place = class_of(thing.call), thing.call.place
    if isinstance(value, str):
        raise ConfigError(f"{place}: is_trainable of {cls} is not known without running the script")
    by_hand = [call for name, call, _ in thing.history if name.endswith("requires_grad=")]
    if by_hand and all(map(is_for_adapters, by_hand)):
        return
    if by_hand:
        raise UnsupportedError(
            f"{by_hand[0].place}: requires_grad set by hand on adapters that {cls} froze is not modelled: load them"
            " with is_trainable=True instead"
        )
    raise ConfigError(
        f"{place}: {cls} without is_trainable=True freezes the adapters, and nothing would train; give it, or merge"
        " them (merge_and_unload) and add new ones"
    )
