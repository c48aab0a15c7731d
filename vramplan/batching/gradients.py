"""Gradients of an optimizer step that are normalised by its tokens, for a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed

from vramplan.batching.torch_loader import IGNORED_LABEL
from vramplan.errors import ConfigError


def predicted_tokens(step: Sequence[Mapping[str, Any]], group: Any = None) -> int:
    """Tokens that a step's loss is a mean of, over all its micro-batches and, with torch.distributed, all ranks.

    Labels that are not ignored, without each row's first position, which a causal language model predicts from nothing.

    Raises:
        ConfigError: the step has none, so its loss would be nothing divided by nothing.
    """
    counts = [(batch["labels"][..., 1:] != IGNORED_LABEL).sum() for batch in step]
    total = torch.stack(counts).sum()
    if distributed.is_available() and distributed.is_initialized():
        if distributed.get_backend(group) == "nccl":
            total = total.cuda()
        distributed.all_reduce(total, group=group)
    if not int(total):
        raise ConfigError("an optimizer step has no token to predict: all labels are ignored")
    return int(total)


def accumulate_gradients(
    model: Any,
    step: Sequence[Mapping[str, Any]],
    *,
    loss: Callable[[Any, Mapping[str, Any], int], torch.Tensor] | None = None,
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward,
    group: Any = None,
) -> float:
    """Gradients of one optimizer step, as if all its samples were one batch: each token has the same weight.

    The mean of the micro-batches' means, which ``loss / accumulation`` computes, is another thing where micro-batches
    have different numbers of tokens. Here each micro-batch's sum is divided by the tokens of the whole step over all
    ranks; DistributedDataParallel averages over ranks, so the loss is multiplied by their number. Ranks exchange
    gradients in the last micro-batch only.

    Args:
        model: a transformers model or any other; in DistributedDataParallel or FSDP where ranks are more than one.
        step: its micro-batches.
        loss: (model, micro-batch, tokens of the step) -> sum of the micro-batch's token losses / tokens. By default
            a transformers model's own with ``num_items_in_batch``.
        backward: accelerate's ``accelerator.backward``, or a scaler's.
        group: the data-parallel ranks, if not all.

    Raises:
        ConfigError: a step has no labels, or padding-free samples would attend to each other.

    Returns:
        The sum of this rank's token losses / tokens of the step, times the number of ranks. Its mean over the ranks is
        the step's loss.
    """
    tokens = predicted_tokens(step, group)
    ranks = distributed.get_world_size(group) if distributed.is_available() and distributed.is_initialized() else 1
    compute = loss or _transformers_loss
    total = torch.zeros(())
    for number, batch in enumerate(step):
        last = number == len(step) - 1
        with nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
            value = compute(model, batch, tokens) * ranks
            backward(value)
        total = total.to(value.device) + value.detach()
    return float(total)


def check_separated(model: Any, batch: Mapping[str, Any]) -> None:
    """Refuse padding-free samples that would attend to each other.

    transformers (5.23, masking_utils.py) sees by ``position_ids`` where a sample ends, but not while it makes a cache.
    """
    config = getattr(getattr(model, "module", model), "config", None)
    if "position_ids" in batch and batch.get("attention_mask") is None and getattr(config, "use_cache", False):
        raise ConfigError(
            "padding-free samples would attend to each other, as transformers separates them by position_ids only "
            "without a cache: set model.config.use_cache = False"
        )


def _transformers_loss(model: Any, batch: Mapping[str, Any], tokens: int) -> torch.Tensor:
    check_separated(model, batch)
    value: torch.Tensor = model(**batch, num_items_in_batch=tokens).loss
    return value
