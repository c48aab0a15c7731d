"""Where in a Python script a setting stands that is to change, as a comment behind it."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.python_script import LORA, MODEL, QUANTIZED
from vramplan.frameworks.registry import FRAMEWORKS

ELSEWHERE = {
    *MODEL,
    *LORA,
    *QUANTIZED,
    *MODEL.values(),
    *LORA.values(),
    *QUANTIZED.values(),
    "use_peft",
    "model_init_kwargs",
}
"""Keys that are arguments of a model's, an adapter's or a quantization's constructor, not of the trainer's."""
OF_LOSS, LOSS, ENCODERS = "mini_batch_size", "loss_class", "sentence-transformers"
"""An argument of a loss, and the key that has its place; the framework whose trainers get a loss."""
LONGEST_NAME = 20
"""Characters of a constructor's name that have room on a line: SentenceTransformerTrainingArguments has 36."""
SPLIT = ("unsloth",)
"""Frameworks with the same keys in several calls."""


def with_line(config: ParsedConfig, settings: Sequence[str]) -> str:
    """Settings on one line, with where they stand in the script behind them: ``bf16=True  # line 12``.

    Nothing is added if one of them has no place that is known, or where the configuration is no script.
    """
    text = "  ".join(settings)
    places = [_place(config, setting.partition("=")[0]) for setting in settings]
    if config.spelling != "python" or config.where.endswith(".ipynb") or not all(places):
        return text
    if len(places) == 1:
        return f"{text}  # {places[0]}"
    numbers = [place.removeprefix("line ") for place in places]
    return f"{text}  # lines {', '.join(numbers)}" if all(map(str.isdigit, numbers)) else text


def _place(config: ParsedConfig, key: str) -> str:
    names = (key, *config.synonyms.get(key, ()))
    written = next((config.settings[name] for name in names if name in config.settings), None)
    if written is not None:
        line, _, call = written.place.removeprefix(f"{config.where}:").partition(": ")
        if not line.isdigit():
            return written.place if not call and line.rpartition(":")[2].isdigit() else ""
        return f"line {line}" if not call else f"add to {call}(...), line {line}" if call.isidentifier() else ""
    if config.framework == ENCODERS and key == OF_LOSS and LOSS in config.settings:
        line = config.settings[LOSS].place.removeprefix(f"{config.where}:")
        return f"add to the loss, line {line}" if line.isdigit() else ""
    if config.framework == ENCODERS and key in ("max_seq_length", OF_LOSS):  # the model's, the loss's
        return ""
    constructor = config.constructor
    framework = next((framework for framework in FRAMEWORKS.values() if framework.name == config.framework), None)
    if framework is None or constructor is None or key in ELSEWHERE or config.framework in SPLIT:
        return ""
    line = constructor.place.removeprefix(f"{config.where}:")
    is_argument = key in known_keys(framework.name, framework.inherits)
    name = f"{constructor.value}(...)" if len(constructor.value) <= LONGEST_NAME else "the arguments"
    return f"add to {name}, line {line}" if is_argument and line.isdigit() else ""


__all__ = ["with_line"]
