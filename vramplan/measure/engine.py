"""PyTorch's autograd engine on fake tensors."""

from __future__ import annotations

from typing import Any


def summed_in_place(args: Any) -> Any:
    """The engine's sum of two gradients, in place where it would be on real tensors."""
    return None
