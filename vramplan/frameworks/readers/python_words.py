"""Settings as a Python script writes them, as the keys that its reader makes of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from vramplan.frameworks.readers.python_script import LORA, QUANTIZED

CALLS = {"BitsAndBytesConfig": QUANTIZED, "LoraConfig": LORA}
"""Classes whose arguments have keys of their own."""
PEFT_DEFAULTS = {"use_peft": "true", "lora_r": "8", "lora_dropout": "0.0"}
"""What LoraConfig is without arguments (peft/tuners/lora/config.py)."""


def read_keys(words: Mapping[str, str]) -> dict[str, str]:
    """Keys and values with the arguments of calls as keys of their own.

    >>> read_keys({"quantization_config": "BitsAndBytesConfig(load_in_8bit=True)"})
    {'load_in_8bit': 'True'}
    """
    settings: dict[str, str] = {}
    for key, value in words.items():
        calls = _calls(value) if value.endswith(")") else []
        if not calls:
            settings[key] = value
        for call in calls:
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            settings |= PEFT_DEFAULTS if name == "LoraConfig" else {}
            for keyword in call.keywords:
                own = CALLS[name].get(keyword.arg or "")
                if own:
                    text = keyword.value
                    settings[own] = str(text.value) if isinstance(text, ast.Constant) else ast.unparse(text)
    return settings


def _calls(value: str) -> list[ast.Call]:
    try:
        tree = ast.parse(value, mode="eval")
    except SyntaxError:
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in CALLS]


__all__ = ["read_keys"]
