"""Training of models that read waveforms: transformers' example scripts, and Python scripts with a class for CTC.

The scripts' defaults are those of transformers 4.20 to 5.23 (examples/pytorch/speech-recognition and
audio-classification).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.sound import USUAL_SECONDS


class Example(NamedTuple):
    """A script of transformers' examples."""

    seconds_key: str
    """The flag that bounds its samples."""
    task: str | None = None
    """The job's task; None for CTC."""


EXAMPLES: Mapping[str, Example] = {
    "run_speech_recognition_ctc.py": Example("max_duration_in_seconds"),
    "run_audio_classification.py": Example("max_length_seconds", "sequence_classification"),
}
FREEZES = ("freeze_feature_encoder", "freeze_feature_extractor")
"""Methods that freeze the convolutions; the second was renamed."""
CONFIGURED = (
    "attention_dropout", "hidden_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout", "layerdrop",
    "mask_time_prob", "mask_time_length", "mask_feature_prob", "mask_feature_length", "ctc_loss_reduction",
    "ctc_zero_infinity",
)  # fmt: skip
"""Keys of the configuration that such scripts set, of which dropouts alone change memory."""
UNREAD = "are those of the checkpoint's configuration; where a script sets 0, it needs less"
NO_SECONDS = (
    f"may be of any length: {USUAL_SECONDS:g} seconds are taken, unless --audio-seconds says how long the longest is"
)


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
        config.read_keys.update((*CONFIGURED, FREEZES[0]))
    if example is None and not hears:
        return {}
    config.note("doubt", "dropouts", UNREAD)
    frozen = config.boolean(FREEZES[0], default=example is not None)
    fields: dict[str, Any] = {"freeze_feature_encoder": frozen, "batches": "padded", "loss": "standard"}
    if example is None:
        config.note("doubt", "sounds", NO_SECONDS)
        return fields
    config.read_keys.add("attention_mask")
    if example.task is not None:
        fields["task"] = example.task
    if not config.has(example.seconds_key):
        config.note("default", example.seconds_key, f"not set: {USUAL_SECONDS:g}")
    return fields | {"audio_seconds": config.number(example.seconds_key, default=USUAL_SECONDS)}
