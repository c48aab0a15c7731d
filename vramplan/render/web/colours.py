"""The order and the colours of what takes memory, in all pictures of a page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "parameter": "weights",
        "optimizer_state": "optimizer",
        "gradient": "gradients",
        "activation": "activations",
        "temporary": "temporaries",
        "communication": "communication",
        "logits": "logits",
        "reserved_unused": "cached",
        "vllm_weights": "vllm-weights",
        "vllm": "vllm",
        "sglang_weights": "vllm-weights",
        "sglang": "vllm",
        "context": "context",
    }
)
"""Category -> the name of its colour in style.css, in order from the left or from below."""
GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "parameter": "model and optimizer",
        "optimizer_state": "model and optimizer",
        "gradient": "moves in the step",
        "activation": "moves in the step",
        "temporary": "moves in the step",
        "communication": "moves in the step",
        "logits": "moves in the step",
        "reserved_unused": "overhead",
        "vllm_weights": "overhead",
        "vllm": "overhead",
        "sglang_weights": "overhead",
        "sglang": "overhead",
        "context": "overhead",
    }
)
"""Category -> what it has in common with its neighbours in a bar."""
