"""Where tensors wait that are saved for backward: on the GPU, or in host memory.

The latter is torchtune 0.6.1, training/_activation_offloading.py: OffloadActivations. A copy to the host needs its
tensor for some time: the last ones that were saved stay on the GPU. What backward asks for is copied back, and stays
until the next node that asks for something has run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramplan.analytic.autograd.graph import LiveStorage, Node, Parameter, Tensor, detached

if TYPE_CHECKING:
    from vramplan.analytic.autograd.tape import Tape

MOST_STASHED = 5
"""Saved tensors, of which those that were copied stay (max_fwd_stash_size)."""
LEAST_BYTES = 1024
"""Bytes from which a tensor is copied (min_offload_size)."""
BROUGHT_BACK = "brought back from the host"


class Packed:
    """A tensor in host memory."""

    __slots__ = ("like", "needs_grad", "number")

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.number, self.like, self.needs_grad = number, tensor.like, tensor.node is not None


class SavedTensors:
    """The saved tensors of one tape, which stay on the GPU."""

    def save(self, node: Node, tensor: Tensor) -> None:
        """Save a tensor for a node's backward."""
        node.saved.append(tensor.storage)

    def pack(self, tensor: Tensor) -> Tensor | Packed:
        """What is saved of an input of a checkpointed function."""
        return tensor

    def again(self, saved: Tensor | Packed, node: Node) -> Tensor:
        """An input of the recomputed function, for a node that is about to run."""
        assert isinstance(saved, Tensor)
        return detached(saved)

    def bring_back(self, node: Node) -> None:
        """Have on the GPU what was saved for a node that is about to run."""

    def has_run(self, node: Node) -> None:
        """Drop what is not needed behind a node."""

    def end(self) -> None:
        """End a backward."""

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Context of the model's forward, without its head."""
        yield


class OffloadedTensors(SavedTensors):
    """Those whose tensors of the model's forward wait in host memory."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.is_on = False
        """Whether tensors that are saved are copied."""
        self.saved = 0
        self.stashed: dict[int, LiveStorage] = {}
        """Copied tensors that are still on the GPU, by number."""
        self.brought: dict[int, LiveStorage] = {}
        """Those that are on the GPU again."""
        self.node: Node | None = None
        """The last node that asked for one."""
        self.earlier: list[int] = []
        """Numbers of those that go when it has run."""

    def save(self, node: Node, tensor: Tensor) -> None:
        packed = self.pack(tensor)
        if isinstance(packed, Packed):
            node.packed.append(packed)
        else:
            node.saved.append(tensor.storage)

    def pack(self, tensor: Tensor) -> Tensor | Packed:
        storage = tensor.storage
        if not self.is_on:
            return tensor
        self.saved += 1
        if isinstance(tensor, Parameter) or not isinstance(storage, LiveStorage) or tensor.num_bytes < LEAST_BYTES:
            return tensor
        for number in [number for number in self.stashed if number <= self.saved - MOST_STASHED]:
            del self.stashed[number]
        self.stashed[self.saved] = storage
        return Packed(self.saved, tensor)

    def again(self, saved: Tensor | Packed, node: Node) -> Tensor:
        if isinstance(saved, Tensor):
            return detached(saved)
        tensor = Tensor(self.tape, self._unpack(saved, node), saved.like.shape, saved.like.dtype)
        if saved.needs_grad:
            tensor.node = Node(self.tape, (), lambda *_: [])
        return tensor

    def bring_back(self, node: Node) -> None:
        node.saved += [self._unpack(one, node) for one in node.packed]

    def _unpack(self, packed: Packed, node: Node) -> LiveStorage:
        if node is not self.node:
            self.node, self.earlier = node, [*self.brought]
        storage = self.stashed.get(packed.number)
        if storage is None:
            storage = self.tape.allocate(packed.like.shape, packed.like.dtype, BROUGHT_BACK, "activation")
            self.brought[packed.number] = storage
        return storage

    def has_run(self, node: Node) -> None:
        if node is self.node:
            self.stashed.clear()
            for number in self.earlier:
                del self.brought[number]
            self.earlier = []

    def end(self) -> None:
        self.stashed.clear()
        self.brought.clear()
        self.node, self.earlier = None, []

    @contextmanager
    def in_model(self) -> Iterator[None]:
        self.is_on = self.tape.grad_enabled
        yield
        self.is_on = False
