"""A model and a GPU by name: from the shipped files, a folder, the Hub, or this machine."""

from __future__ import annotations

from vramplan.inputs import hub, nvml
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec


def load_model(name: str | ModelSpec) -> ModelSpec:
    """A model by shipped name, folder, config.json or Hub id; a loaded one is returned as it is.

    Raises:
        VramplanError: if the name is unknown.
    """
    return name if isinstance(name, ModelSpec) else hub.resolve_model(name)


def load_gpu(name: str | Gpu) -> Gpu:
    """A GPU by name; "auto" is the one in this machine; a loaded one is returned as it is.

    Raises:
        VramplanError: if the name is unknown.
    """
    if isinstance(name, Gpu):
        return name
    return nvml.local_gpu() if name.lower() == "auto" else find_gpu(name)
