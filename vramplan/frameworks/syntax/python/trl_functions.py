"""TRL's ModelConfig, and the functions by which scripts make PEFT's and bitsandbytes' configurations of it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from vramplan.frameworks.syntax.python.classes import Classes
from vramplan.frameworks.syntax.python.values import Library, Ref, Unknown

MODEL_CONFIG = "trl.ModelConfig"
DEFAULTS: Mapping[str, Any] = {
    "model_revision": "main", "trust_remote_code": False, "torch_dtype": None, "dtype": "float32",
    "attn_implementation": None, "use_peft": False, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05,
    "lora_target_modules": None, "lora_modules_to_save": None, "lora_task_type": "CAUSAL_LM", "use_rslora": False,
    "use_dora": False, "load_in_8bit": False, "load_in_4bit": False, "bnb_4bit_quant_type": "nf4",
    "use_bnb_nested_quant": False,
}  # fmt: skip
"""Fields and their defaults (TRL 1.16, trainer/model_config.py); before 0.24 `torch_dtype`, without a value."""
_LORA = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save", "task_type": "lora_task_type", "use_dora": "use_dora",
}  # fmt: skip
"""Arguments of LoraConfig -> fields (trainer/utils.py: get_peft_config)."""
_QUANTIZED = {"bnb_4bit_quant_type": "bnb_4bit_quant_type", "bnb_4bit_use_double_quant": "use_bnb_nested_quant"}
"""Arguments of BitsAndBytesConfig -> fields (trainer/utils.py: get_quantization_config)."""


def made(machine: Classes, function: Any, positional: list[Any], node: ast.AST) -> Any:
    """What one of TRL's functions returns; NotImplemented for others, and for a model's fields that are not known."""
    if not isinstance(function, Library) or not function.name.startswith("trl."):
        return NotImplemented
    if function.last == "get_kbit_device_map":
        return machine.new("dict", slots={"": 0})
    if function.last not in ("get_peft_config", "get_quantization_config") or len(positional) != 1:
        return NotImplemented
    config = positional[0]
    if not isinstance(config, Ref) or machine.at(config).cls != Library(MODEL_CONFIG) or machine.at(config).is_open:
        return NotImplemented
    fields = machine.at(config).slots
    if any(isinstance(fields.get(name), Unknown) for name in ("use_peft", "load_in_4bit", "load_in_8bit")):
        return NotImplemented
    if function.last == "get_peft_config":
        if fields.get("use_peft") is not True:
            return None
        return _constructed(machine, "peft.LoraConfig", {name: fields[key] for name, key in _LORA.items()}, node)
    if fields.get("load_in_4bit") is True:
        dtype = fields.get("torch_dtype") or fields.get("dtype")
        values = {name: fields[key] for name, key in _QUANTIZED.items()}
        values |= {"load_in_4bit": True, "bnb_4bit_compute_dtype": dtype}
        return _constructed(machine, "transformers.BitsAndBytesConfig", values, node)
    if fields.get("load_in_8bit") is True:
        return _constructed(machine, "transformers.BitsAndBytesConfig", {"load_in_8bit": True}, node)
    return None


def _constructed(machine: Classes, name: str, values: dict[str, Any], node: ast.AST) -> Ref:
    """A library's object, as if the script had called its class."""
    thing = machine.new("instance", cls=Library(name))
    call = machine.record(name, node, [], values)
    item = machine.change(thing.id, "*")
    item.slots.update(values)
    item.call = call
    machine.adopt(thing, call)
    return thing


__all__ = ["DEFAULTS", "MODEL_CONFIG", "made"]
