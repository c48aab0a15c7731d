"""What an adaptive Trainer refuses, and the file that it keeps in each checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.adaptive.controller import Controller
from vramplan.adaptive.step_loader import Order
from vramplan.atomic_write import write
from vramplan.errors import ConfigError, UnsupportedError, setting

STATE_NAME = "adaptive_state.json"
REFUSED = {
    "auto_find_batch_size": "it begins the run again with another global batch; the controller has smaller batches",
    "ignore_data_skip": "a position is restored without reading the samples before it",
}


def check_trainer(trainer: Any) -> None:
    """Refuse what splits a gradient over ranks.

    Raises:
        UnsupportedError: naming it.
    """
    args, dataset = trainer.args, trainer.train_dataset
    if dataset is not None and hasattr(dataset, "__len__") and not len(dataset):
        raise ConfigError("the data set is empty")
    for name, reason in REFUSED.items():
        if getattr(args, name):
            raise UnsupportedError(f"{name}: {reason}")
    if args.n_gpu > 1:
        raise UnsupportedError(f"DataParallel on {args.n_gpu} GPUs: start one process for each, with torchrun")
    parallel = {
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "FSDP": trainer.is_fsdp_enabled,
        "tensor, context or sequence parallelism": trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size()
        > 1,
    }
    for name, is_on in parallel.items():
        if is_on:
            raise UnsupportedError(
                f"{name}: a rank holds a part of each gradient; DistributedDataParallel is supported"
            )


def check_arguments(args: Any, controller: Controller) -> None:
    """Refuse training arguments for another batch than the controller's base batch.

    Raises:
        ConfigError: with both batches.
    """
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if batch != controller.base_batch:
        raise ConfigError(
            f"{setting('per_device_train_batch_size', args.per_device_train_batch_size)} x"
            f" {setting('gradient_accumulation_steps', args.gradient_accumulation_steps)} x {args.world_size} processes"
            f" = {batch}; the controller's base batch, for which learning rate and steps are set, is"
            f" {controller.base_batch}"
        )


def order_of(loader: Any) -> Order:
    """The order of each epoch, from a loader that accelerate has prepared.

    Raises:
        UnsupportedError: for a sampler whose order depends on the batch, or is not known from the epoch.
    """
    from torch.utils.data import SequentialSampler

    sampler = loader.get_sampler()
    if isinstance(sampler, SequentialSampler):
        return lambda epoch: range(len(sampler))
    if type(sampler).__name__ != "SeedableRandomSampler":
        raise UnsupportedError(
            f"{type(sampler).__name__}: the order of an epoch has to be known from its number; set"
            " train_sampling_strategy to random or sequential, and leave use_seedable_sampler on"
        )

    def shuffled(epoch: int) -> Sequence[int]:
        sampler.set_epoch(epoch)
        return list(sampler)

    return shuffled


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state in a checkpoint's folder.

    Raises:
        ConfigError: if it has none, or one that cannot be read.
    """
    path = checkpoint / STATE_NAME
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a checkpoint of a run with a controller: {error}") from error
    return state


def write_state(checkpoint: Path, state: Mapping[str, Any]) -> None:
    """Write the state into a checkpoint's folder, in one piece."""
    write(checkpoint / STATE_NAME, (json.dumps(state, indent=1) + "\n").encode())
