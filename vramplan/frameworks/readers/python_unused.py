"""Flags of TRL's ModelConfig with which a script does nothing: it loads and adapts the model by values of its own."""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.frameworks.readers.python_trainer import Run
from vramplan.frameworks.settings import ConfigValue, Note
from vramplan.frameworks.syntax.shell import UNKNOWN

LOADING = ("dtype", "torch_dtype", "attn_implementation", "load_in_4bit", "load_in_8bit")
ADAPTERS = ("lora_r", "lora_target_modules", "lora_modules_to_save", "use_dora")
UNSLOTH = "get_peft_model"
"""The key of unsloth's adapters."""
OFF = ("", "false", "none")


def notes(run: Run, settings: Mapping[str, ConfigValue]) -> tuple[Note, ...]:
    """A warning for each flag that changes memory, and that what the script trains with does not follow.

    Of a part of a script without a trainer, a doubt: what gets the model is not known.
    """
    if run.trainer is None:
        names = [name for name in ("use_peft", "load_in_4bit", "load_in_8bit") if _text(run.settings.get(name))]
        text = "whether it has an effect: no trainer stands in the script"
        return tuple(Note("doubt", name, text, run.settings[name].place) for name in names)
    remarks: dict[str, str] = {}
    differing = {name for name in run.unused if _text(run.unused[name]) != _text(settings.get(_key(name)))}
    if "use_peft" in differing and not {"use_peft", UNSLOTH} & settings.keys():
        remarks["use_peft"] = "has no effect: the script hands no peft_config to its trainer; every weight trains"
    elif "use_peft" in settings:
        remarks |= dict.fromkeys(
            (name for name in ADAPTERS if name in differing), "has no effect: the script makes its adapters without it"
        )
    remarks |= dict.fromkeys(
        (name for name in LOADING if name in differing), "has no effect: the script loads the model without it"
    )
    return tuple(Note("warning", name, text, run.unused[name].place) for name, text in remarks.items())


def _key(name: str) -> str:
    return "dtype" if name == "torch_dtype" else name


def _text(value: ConfigValue | None) -> str:
    """A value as one text, however the script or the command writes it: torch.bfloat16 as bfloat16."""
    values = [] if value is None else value.value if isinstance(value.value, list) else [value.value]
    text = " ".join(str(item).replace(UNKNOWN, "").rpartition("torch.")[2] for item in values)
    return "" if text.casefold() in OFF else text.casefold()
