"""The loss of transformers' causal language models, by its version."""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.parsed_config import at_least

BEFORE = (("4.46", "sliced_fp32"), ("4.49", "sliced"))
"""A version, and the loss of those before it.

Up to 4.45 the model casts its logits to fp32, which replace the half-precision ones, and copies all but the last of
each sample (modeling_llama.py and others, 4.40 to 4.45; Mistral and Granite up to 4.47; GPT-2, OPT, BLOOM and Falcon
do not cast, and need less). From 4.46 on the cast is inside of the loss and the model returns half-precision logits
(loss/loss_utils.py: ForCausalLMLoss); from 4.49 on labels are shifted instead of logits.
"""


def loss_of(version: Any) -> str:
    """The job's `loss` under a version of transformers."""
    return next((loss for first, loss in BEFORE if not at_least(version, first)), "standard")
