"""transformers' own example scripts beside its classifiers: what they load and how long their samples are.

examples/pytorch/summarization, translation and language-modeling of transformers 4.20 to 5.23.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import Config

TEXT_TO_TEXT = ("run_summarization.py", "run_translation.py")
"""Scripts with a text and an answer."""
SOURCE_LENGTH, TARGET_LENGTH = 1024, 128
"""Their max_source_length and max_target_length, if not set."""
MASKED = "run_mlm.py"
MOST_MASKED = 1024
"""Tokens of a row of run_mlm.py if max_seq_length is not set and the model takes more."""


def read_example(config: ConfigReader, script: str, job: dict[str, Any]) -> dict[str, Any]:
    """Fields of a job that such a script decides; none for others.

    Args:
        config: the configuration.
        script: the path of the script that a command runs, or nothing.
        job: what has been read so far.

    Raises:
        ConfigError: for a model that the script cannot load.
    """
    name = Path(script).name
    if name in TEXT_TO_TEXT:
        _require_class(config, name, "AutoModelForSeq2SeqLM", "ForConditionalGeneration")
        for key, length in (("max_source_length", SOURCE_LENGTH), ("max_target_length", TARGET_LENGTH)):
            if not config.has(key):
                config.note("default", key, f"not set: {length}")
        config.read_keys.add("val_max_target_length")
        return {
            "sequence_length": config.integer("max_source_length", default=SOURCE_LENGTH),
            "target_length": config.integer("max_target_length", default=TARGET_LENGTH),
        }
    if name == MASKED:
        _require_class(config, name, "AutoModelForMaskedLM", "ForMaskedLM")
        model = config.source.model
        if model is not None and "sequence_length" not in job:
            positions = MODEL_INPUTS[model.model_type].most_tokens(Config(model.config, model.name))
            if positions is None or positions > MOST_MASKED:
                config.note("default", "max_seq_length", f"not set: {MOST_MASKED}")
                return {"sequence_length": MOST_MASKED}
    return {}


def _require_class(config: ConfigReader, name: str, auto_class: str, end: str) -> None:
    """Check that the model, if it is known, has a class that the script loads."""
    model = config.source.model
    if model is None:
        return
    inputs = MODEL_INPUTS.get(model.model_type)
    if inputs is None or not inputs.model_class.endswith(end):
        other = (
            "run_clm.py"
            if inputs is None
            else MASKED
            if inputs.model_class.endswith("ForMaskedLM")
            else "another script"
        )
        raise ConfigError(
            f"{config.source.where}: {name} loads {auto_class}, and {model.name} is of type {model.model_type},"
            f" which has none; {other} trains it"
        )
