"""Groups of GPUs of one run that hold other models than the GPUs that are planned first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vramplan.frameworks.parsed_config import ParsedConfig


class Engines(NamedTuple):
    """VLLM's engines on GPUs of their own."""

    share: float
    """Part of each GPU that an engine takes (``gpu_memory_utilization``)."""
    tensor_parallel: int
    """GPUs that hold one copy of the model together."""
    max_length: int
    """Tokens of the longest text (``max_model_len``)."""


class GpuGroup(NamedTuple):
    """One of them."""

    name: str
    """What is on it, as part of a sentence: ``the critic``."""
    key: str
    """The setting that says how many GPUs it has."""
    num_gpus: int
    reading: ParsedConfig | None = None
    """The job of each of its GPUs; its model's name is empty if that is the model that trains."""
    engines: Engines | None = None
    """Instead, vLLM's engines with the model that trains."""
    unknown: str = ""
    """Instead, why it is not planned."""
