"""transformers' own example scripts beside its classifiers: what they load and how long their samples are.

examples/pytorch/summarization, translation and language-modeling of transformers 4.20 to 5.23.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import Config

TEXT_TO_TEXT = ("run_summarization.py", "run_translation.py")
"""Scripts with a text and an answer."""
SOURCE_LENGTH, TARGET_LENGTH = 1024, 128
"""Their max_source_length and max_target_length, if not set."""
BLOCKS = ("run_clm.py", "run_fim.py")
"""Scripts of causal language models, which join all texts and cut them into blocks."""
CAUSAL_ENCODERS = ("bert", "roberta", "xlm-roberta")
"""Encoders for which AutoModelForCausalLM has a class (5.23, modeling_auto.py)."""
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
    if name in BLOCKS:
        _refuse_encoder(config, name)
    if name == MASKED:
        _require_class(config, name, "AutoModelForMaskedLM", "ForMaskedLM")
        model = config.source.model
        if model is not None and "sequence_length" not in job:
            positions = MODEL_INPUTS[model.model_type].most_tokens(Config(model.config, model.name))
            if positions is None or positions > MOST_MASKED:
                config.note("default", "max_seq_length", f"not set: {MOST_MASKED}")
                return {"sequence_length": MOST_MASKED}
    return {}


def _refuse_encoder(config: ConfigReader, name: str) -> None:
    """Refuse a model that is no decoder, if it is known.

    An encoder with a causal class, such as BertLMHeadModel, still reads both ways (is_decoder is False, of which
    transformers warns), and its loss makes fp32 logits (5.23, loss/loss_utils.py: ForCausalLMLoss).
    """
    model = config.source.model
    inputs = None if model is None else MODEL_INPUTS.get(model.model_type)
    if model is None or inputs is None:
        return
    is_masked = inputs.model_class.endswith("ForMaskedLM")
    other = f"; {MASKED} trains it" if is_masked else ""
    if model.model_type in CAUSAL_ENCODERS:
        raise UnsupportedError(
            f"{config.source.where}: {name} loads AutoModelForCausalLM: {model.name} would read both ways and learn the"
            f" next token all the same (is_decoder is not set), which is not modelled{other}"
        )
    raise ConfigError(
        f"{config.source.where}: {name} loads AutoModelForCausalLM, and {model.name} is of type {model.model_type},"
        f" which is no causal language model{other}"
    )


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
