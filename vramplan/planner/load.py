"""Loads the model and the GPU of a question."""

from __future__ import annotations

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import with_margin


def load_both(model: str | ModelSpec, gpu: str | Gpu, confidence: float) -> tuple[ModelSpec, Gpu]:
    """The model, and the GPU with its safety margin; the GPU first, since an invalid name there needs no network."""
    loaded = with_margin(load_gpu(gpu), confidence)
    return load_model(model), loaded
