"""A model onto the device that is watched."""

from __future__ import annotations

import torch
from torch import nn

from vramplan.torch_backend.model.build import SAVED
from vramplan.torch_backend.trace.storage_tracker import Watch


def place(module: nn.Module, watch: Watch) -> None:
    """Follow every parameter, buffer and plain tensor attribute (sharing kept); those on meta get a storage first.

    Under a FakeTensorMode that storage is fake.
    """
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def placed(tensor: torch.Tensor, path: str) -> torch.Tensor:
        if id(tensor) not in known:
            new = tensor
            if tensor.is_meta:
                new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            number = watch.take(new, "", path)
            if number is not None:
                watch.records[number].category = "parameter"
            if isinstance(tensor, nn.Parameter) and new is not tensor:
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            known[id(tensor)] = (tensor, new)
        return known[id(tensor)][1]

    modules = list(module.named_modules())
    modules.sort(key=lambda named: "lora_" in named[0] or SAVED in named[0])  # these come to a model that is loaded
    for prefix, one in modules:
        for group in (one._parameters, one._buffers):
            for name, tensor in group.items():
                if tensor is not None:
                    group[name] = placed(tensor, f"{prefix}.{name}")
        for name, value in list(vars(one).items()):
            if isinstance(value, torch.Tensor):
                setattr(one, name, placed(value, f"{prefix}.{name}"))
