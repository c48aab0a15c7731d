"""Who else holds a tensor, as Python counts it."""

from __future__ import annotations

from sys import getrefcount

from vramplan.analytic.autograd.graph import Grads


def holders(tensors: Grads, index: int) -> tuple[int, int]:
    """Reference counts of a tensor in a list and of its storage, to compare with those of an unshared tensor."""
    tensor = tensors[index]
    assert tensor is not None
    return getrefcount(tensor), getrefcount(tensor.storage)


def base_holders(views: Grads, index: int) -> tuple[int, int]:
    """Reference counts of the tensor of which there is a view in a list, and of their storage."""
    view = views[index]
    assert view is not None
    base = view.base
    assert base is not None
    return getrefcount(base), getrefcount(base.storage)
