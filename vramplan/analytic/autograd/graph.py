"""Tensors that have a shape and a dtype but no data, and the graph behind them.

Lifetimes follow Python's reference count, exactly as in eager PyTorch: a storage is freed when the last tensor,
autograd node or local variable that holds it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, NamedTuple
from weakref import ReferenceType

from vramplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from vramplan.analytic.autograd.tape import Tape

Grads = list["Tensor | None"]
Backward = Callable[..., Grads]


class StorageInfo(NamedTuple):
    """What one allocation is, for people."""

    num_bytes: int
    category: str
    module: str
    what: str
    shape: tuple[int, ...]
    dtype: str
    card: int = 0
    """Which of several cards it lies on."""


class Like(NamedTuple):
    """Shape and dtype of a tensor, without its memory."""

    shape: tuple[int, ...]
    dtype: str


class LayerSection(NamedTuple):
    """A stretch of the record: one layer's share of one phase (`layer` is None outside the repeated layers)."""

    phase: str
    layer: int | None
    first_event: int
    first_storage: int
    first_kernel: int


class LiveStorage:
    """One allocation. Python frees it where PyTorch would."""

    __slots__ = ("emit", "id")

    def __init__(self, id: int, emit: Callable[[int], None]) -> None:
        self.id = id
        self.emit = emit

    @property
    def ids(self) -> tuple[int, ...]:
        """All that it is recorded as."""
        return (self.id,)

    def __del__(self) -> None:
        self.emit(~self.id)


class Resident:
    """Stands for memory that outlives the step (a parameter), which the tape neither allocates nor frees."""

    __slots__ = ()


class Node:
    """One backward function: where its gradients go, what it keeps, what it does."""

    __slots__ = (
        "__weakref__", "attributes", "backward", "card", "copies", "edges", "frame", "layer", "module", "num_grads",
        "saved", "sequence", "slots",
    )  # fmt: skip

    def __init__(self, tape: Tape, inputs: tuple[Tensor, ...], backward: Backward, num_grads: int = 1) -> None:
        self.edges = [None if tensor.node is None else (tensor.node, tensor.index) for tensor in inputs]
        self.backward = backward
        self.saved: list[LiveStorage | Resident] = []
        self.attributes: list[LiveStorage | Resident] = []
        self.frame: CheckpointFrame | None = (
            None  # set with the first saved tensor: torch's hooks on those alone hold it
        )
        self.slots: list[int] = []
        tape.sequence += 1
        self.sequence = tape.sequence
        self.layer = tape.layer
        self.card = tape.card
        self.copies = tape.turns.copies
        self.module = tape.module
        self.num_grads = num_grads


class Tensor:
    """A shape, a dtype, and the storage and autograd node behind them."""

    __slots__ = ("base", "dtype", "index", "node", "shape", "storage", "tape")

    def __init__(
        self,
        tape: Tape,
        storage: LiveStorage | Resident,
        shape: tuple[int, ...],
        dtype: str,
        node: Node | None = None,
        index: int = 0,
        base: Tensor | None = None,
    ) -> None:
        self.tape = tape
        self.storage = storage
        self.shape = shape
        self.dtype = dtype
        self.node = node
        self.index = index
        self.base = base

    @property
    def like(self) -> Like:
        """Shape and dtype alone."""
        return Like(self.shape, self.dtype)

    @property
    def num_elements(self) -> int:
        """Elements in this tensor."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of this tensor, unrounded."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    def view(self, *shape: int) -> Tensor:
        """The same storage under another shape; its gradient is a view too, so it needs no node of its own.

        As in PyTorch a view holds its base, also without gradients (DifferentiableViewMeta): a storage seen through a
        view is never held alone.
        """
        return Tensor(self.tape, self.storage, shape, self.dtype, self.node, self.index, self.base or self)

    def detach(self) -> Tensor:
        """The same storage without autograd history."""
        return Tensor(self.tape, self.storage, self.shape, self.dtype)


class Accumulate(Node):
    """AccumulateGrad: the end of the graph at a leaf, which it keeps. It runs as soon as its gradient is whole."""

    __slots__ = ("grad", "leaf", "name", "reached", "reorders")

    def __init__(self, tape: Tape, leaf: Tensor, name: str = "") -> None:
        super().__init__(tape, (), lambda: [])
        self.leaf = leaf.detach()  # not `leaf` itself: the two would keep each other alive
        self.name = name
        self.grad: Tensor | None = None
        self.reached = False
        self.reorders = False
        self.sequence = 1 << 60  # UINT64_MAX in engine.cpp: first in the queue


SAVED = ".modules_to_save"
"""In the name of what trains in a frozen module's place (PEFT's ModulesToSaveWrapper)."""
Stored = tuple[tuple[str, int, str], ...]
"""(what, bytes, formula) of each tensor that a weight is stored as; none where it is stored as it is."""


class Parameter(Tensor):
    """A weight: resident memory, and a gradient where it trains."""

    __slots__ = ("card", "copies", "held", "layer", "name", "quantize", "stored", "viewed")

    def __init__(
        self,
        tape: Tape,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        trains: bool,
        stored: Stored = (),
        quantize: str = "none",
    ) -> None:
        super().__init__(tape, Resident(), shape, dtype)
        self.name = name
        self.stored = stored
        self.quantize = quantize
        self.held = False
        """Whether a graph keeps the very memory that it is in, until it is dropped (``ctx.tensors``)."""
        self.layer, self.card = tape.layer, tape.card
        self.copies = tape.turns.copies
        """Experts that have one like it, whom this one stands for."""
        self.viewed = False
        """Whether backward keeps a view of it, which ZeRO-3 cannot empty as it does the weight."""
        if trains:
            self.node = Accumulate(tape, self, name)

    def reordered(self) -> Parameter:
        """Itself; its gradient comes in another order than it lies in memory, and is copied (accumulate_grad.h)."""
        if isinstance(self.node, Accumulate):
            self.node.reorders = True
        return self

    @property
    def is_adapter(self) -> bool:
        """Whether it belongs to an adapter, not to the model itself (PEFT's names)."""
        return ".lora_" in self.name or SAVED in self.name

    @property
    def trains(self) -> bool:
        """Whether the optimizer updates this weight."""
        return self.node is not None

    @property
    def is_reached(self) -> bool:
        """Whether a backward pass has made a gradient for it."""
        return isinstance(self.node, Accumulate) and self.node.reached

    @property
    def grad(self) -> Tensor | None:
        """That gradient, where it stays."""
        return self.node.grad if isinstance(self.node, Accumulate) else None


def leaf(source: Tensor) -> Tensor:
    """`source` made a leaf that needs a gradient, which is kept (`enable_input_require_grads`)."""
    made = source.detach()
    made.node = Accumulate(source.tape, source)
    return made


class StopRecompute(Exception):
    """Raised inside a recomputed forward once the last saved tensor is there (checkpoint's early stop)."""


class CheckpointFrame:
    """One checkpointed call: its forward saved nothing; the first node that wants a tensor replays it.

    Mirrors torch/utils/checkpoint.py (non-reentrant, early stop on), torch 2.13.
    """

    __slots__ = ("autocast", "function", "inputs", "slots", "waiting")

    def __init__(self, function: Callable[..., object], inputs: tuple[Tensor, ...], autocast: str | None) -> None:
        self.function = function
        self.inputs = inputs
        self.waiting: list[ReferenceType[Node]] = []
        """For each slot the node that will ask for it, if it lives until then (torch's weak_holders)."""
        self.slots: list[LiveStorage | Resident | None] | None = None
        self.autocast = autocast


def count_dependencies(roots: Iterable[Node]) -> dict[Node, int]:
    """How many gradients each node waits for (engine.cpp: compute_dependencies)."""
    counts = dict.fromkeys(roots, 0)
    stack = list(counts)
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            target = edge[0]
            if target in counts:
                counts[target] += 1
            else:
                counts[target] = 1
                stack.append(target)
    return counts
