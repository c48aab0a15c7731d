"""Give a model on the meta device storages, and follow the storages of a model."""

from __future__ import annotations

import torch
from torch import nn

from vramplan.torch_backend.model.adapters import SAVED
from vramplan.torch_backend.trace.storage_tracker import StorageTracker


def place(module: nn.Module, tracker: StorageTracker) -> None:
    """Follow the storages of all parameters, buffers and tensor attributes; those on meta get storages first.

    Shared tensors stay shared. Under a FakeTensorMode the new storages are fake.
    """
    placed_by_id: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def placed(tensor: torch.Tensor, path: str) -> torch.Tensor:
        if id(tensor) not in placed_by_id:
            new = tensor
            if tensor.is_meta or (
                tracker.is_fake and isinstance(tensor, nn.Parameter)
            ):  # torch.Tensor(n) is on the CPU
                new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            number = tracker.take(new, "", path)
            if number is not None:
                tracker.records[number].category = "parameter"
            if isinstance(tensor, nn.Parameter) and new is not tensor:
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            placed_by_id[id(tensor)] = (tensor, new)
        return placed_by_id[id(tensor)][1]

    modules = list(module.named_modules())
    modules.sort(key=lambda named: "lora_" in named[0] or SAVED in named[0])  # PEFT adds these to a loaded model
    for prefix, submodule in modules:
        for group in (submodule._parameters, submodule._buffers):
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = placed(tensor, f"{prefix}.{name}")
        for name, value in list(vars(submodule).items()):
            if isinstance(value, torch.Tensor):
                setattr(submodule, name, placed(value, f"{prefix}.{name}"))
