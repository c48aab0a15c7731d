"""Training of models that read waveforms: transformers' example scripts, and Python scripts with a class for CTC.

The scripts' defaults are those of transformers 4.20 to 5.23 (examples/pytorch/speech-recognition and
audio-classification).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.frameworks.settings import ConfigReader, ConfigValue, is_unknown
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.sound import USUAL_SECONDS


class Example(NamedTuple):
    """A script of transformers' examples."""

    seconds_key: str
    """The flag that bounds its samples."""
    task: str | None = None
    """The job's task; None for CTC."""
    defaults: Mapping[str, Any] = {}
    """What it writes into the model's configuration unless a flag says otherwise."""


CTC_DEFAULTS = {
    **dict.fromkeys(
        ("attention_dropout", "hidden_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout"), 0.0
    ),
    "mask_time_prob": 0.05,
    "mask_time_length": 10,
    "mask_feature_prob": 0.0,
    "ctc_loss_reduction": "mean",
}
"""ModelArguments of run_speech_recognition_ctc.py, which all go into the configuration."""
EXAMPLES: Mapping[str, Example] = {
    "run_speech_recognition_ctc.py": Example("max_duration_in_seconds", defaults=CTC_DEFAULTS),
    "run_audio_classification.py": Example("max_length_seconds", "sequence_classification"),
}
FREEZES = ("freeze_feature_encoder", "freeze_feature_extractor")
"""Methods that freeze the convolutions; the second was renamed."""
PROBABILITIES = (
    "attention_dropout", "hidden_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout",
    "mask_time_prob", "mask_feature_prob",
)  # fmt: skip
LENGTHS = ("mask_time_length", "vocab_size")
OTHERS = ("ctc_loss_reduction", "ctc_zero_infinity")
UNCHANGED = ("layerdrop", "mask_feature_length")
"""Memory is that of a step in which no layer is dropped; masked channels are as large whatever their number."""
CONFIGURED = (*PROBABILITIES, *LENGTHS, *OTHERS, *UNCHANGED)
"""Keys of the model's configuration that such scripts set."""
OWN_CONFIG = "model_config"
"""The key for a configuration that a Python script makes itself and passes on."""
NOT_READ = "is not read: dropouts, masks and letters are those of the checkpoint; say what differs by --set KEY=VALUE"
LETTERS = "follows from the data set: the checkpoint's is taken; scripts with thousands of characters need more"
_CLASSES = re.compile(r"Wav2Vec2|Hubert|.*For(CTC|AudioClassification)$")
ABSENT = ConfigValue(None, "")
NO_SECONDS = f"is not known: {USUAL_SECONDS:g} seconds are taken, unless --audio-seconds says how long the longest is"


def is_speech(name: str) -> bool:
    """Whether a class of this name reads waveforms."""
    return _CLASSES.match(name) is not None


def read_speech(config: ConfigReader, script: str) -> dict[str, Any]:
    """Fields of a job that trains a model of waveforms; none if the model is none, or is not known.

    Args:
        config: the configuration.
        script: the path of the script that a command runs, or nothing.
    """
    example = EXAMPLES.get(Path(script).name) if config.source.spelling != "python" else None
    model = config.source.model
    hears = model is not None and model.model_type in MODEL_INPUTS and MODEL_INPUTS[model.model_type].hears
    if model is None or hears or example is not None:
        config.read_keys.update((*CONFIGURED, OWN_CONFIG, FREEZES[0]))
    if example is None and not hears:
        return {}
    if OWN_CONFIG in config.source.settings:
        config.note("doubt", OWN_CONFIG, NOT_READ)
    frozen = config.boolean(FREEZES[0], default=example is not None)
    fields: dict[str, Any] = {"freeze_feature_encoder": frozen, "batches": "padded", "loss": "standard"}
    if example is None:
        config.note("doubt", "audio_seconds", NO_SECONDS)
        return fields
    config.read_keys.add("attention_mask")
    if example.task is not None:
        fields["task"] = example.task
    if not config.has(example.seconds_key):
        config.note("default", example.seconds_key, f"not set: {USUAL_SECONDS:g}")
    return fields | {"audio_seconds": config.number(example.seconds_key, default=USUAL_SECONDS)}


def read_model_config(config: ConfigReader, script: str) -> dict[str, Any]:
    """Keys of the model's configuration that the script sets, with their values."""
    example = EXAMPLES.get(Path(script).name) if config.source.spelling != "python" else None
    names = [name for name in CONFIGURED if name in config.source.settings]
    values: dict[str, Any] = dict(example.defaults) if example is not None else {}
    makes_letters = example is not None and example.task is None
    if makes_letters or is_unknown(config.source.settings.get("vocab_size", ABSENT).value):
        config.note("doubt", "vocab_size", LETTERS)
        names = [name for name in names if name != "vocab_size"]
    for name in names:
        if name in PROBABILITIES:
            values[name] = config.number(name, default=0.0)
        elif name in LENGTHS:
            values[name] = config.integer(name, default=1)
        elif name == "ctc_zero_infinity":
            values[name] = config.boolean(name, default=False)
        elif name == "ctc_loss_reduction":
            values[name] = config.lowercase(name, default="sum")
    return values
