"""TRL's loss on a GPU: the fused LM head of the package trl, as its SFTTrainer adds and calls it (trl 1.16)."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from torch import nn

from vramplan.errors import MissingDependencyError, setting

OUTPUTS = ("log_probs", "entropy", "is_top1")
"""What SFTTrainer has the head compute: the loss, and two metrics."""


def use(module: nn.Module, owner: str) -> None:
    """Replace the model's loss.

    Without Triton TRL scores every position, in tiles of another size: another job.

    Raises:
        MissingDependencyError: if trl or Triton is not installed, or trl has no fused LM head.
    """
    from transformers.utils import is_triton_available

    try:
        from trl.trainer.utils import add_fused_lm_head
    except ImportError as error:
        raise MissingDependencyError(
            f'{owner}: {setting("loss", "chunked")} on a GPU needs TRL: pip install "trl>=1.16"'
        ) from error
    if not is_triton_available():
        raise MissingDependencyError(f"{owner}: {setting('loss', 'chunked')} on a GPU needs Triton: pip install triton")
    from transformers.modeling_outputs import CausalLMOutput

    inner: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
    add_fused_lm_head(inner, outputs=OUTPUTS)
    fused = inner.forward

    @functools.wraps(type(inner).forward)
    def forward(self: Any, *args: Any, num_items_in_batch: torch.Tensor | None = None, **kwargs: Any) -> Any:
        outputs = fused(*args, fused_lm_head=True, **kwargs)
        num_tokens = outputs.label_mask.sum() if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=(-outputs.log_probs).sum() / num_tokens.clamp(min=1))

    inner.forward = types.MethodType(forward, inner)
