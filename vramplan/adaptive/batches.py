"""Batches as collators make them: tensors, or mappings, lists and tuples of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on a device."""
    if hasattr(batch, "to"):  # tensors, and transformers' BatchEncoding
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def tokens_of(batch: Any) -> int:
    """Tokens of a batch without padding; 0 if it has no input_ids."""
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        return 0
    mask = batch.get("attention_mask")
    return int(batch["input_ids"].numel() if mask is None or mask.dim() != 2 else mask.sum())


def labels_of(batch: Any, shifts_labels: bool) -> int:
    """Labels of a batch that the loss counts, as transformers' ``Trainer._get_num_items_in_batch`` counts them.

    Args:
        batch: With labels, or with shift_labels.
        shifts_labels: Whether the loss leaves the first label of each sample out, as causal language models do.
    """
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch["labels"][..., 1:] if shifts_labels else batch["labels"]
    return int(labels.ne(-100).sum())


def without_labels(batch: Any) -> Any:
    """The batch with no label that a loss counts."""
    return {name: value.new_full(value.shape, -100) if "labels" in name else value for name, value in batch.items()}
