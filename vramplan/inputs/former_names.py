"""Names of the previous release, and other names of values, in place of which the current ones stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.inputs.usual_names import VALUES

FORMER_FIELDS = {
    "kbit": "prepare_for_kbit_training",
    "loads_on_card": "loads_whole_model",
    "carves": "wraps_embeddings",
    "checkpoint_outside": "checkpoint_wraps_fsdp",
}
"""Field names of the previous release, accepted until 0.2."""
FORMER_VALUES = {("strategy", "pipeline"): "device_map"}


def spelled(name: str, value: str) -> str:
    """A value as the tables of names write it: Seq-Cls as seq_cls."""
    return value.replace("-", "_").lower() if name == "task" else value


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a job with former names and other names of values replaced by the current ones."""
    values = FORMER_VALUES | VALUES
    texts = {name: spelled(name, value) if isinstance(value, str) else value for name, value in settings.items()}
    return {
        FORMER_FIELDS.get(name, name): values.get((name, value), value) if isinstance(value, str) else value
        for name, value in texts.items()
    }
