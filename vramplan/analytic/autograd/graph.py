"""Tensors that have a shape and a dtype but no data, and the graph behind them.

Lifetimes follow Python's reference count, exactly as in eager PyTorch: a storage is freed when the last tensor,
autograd node or local variable that holds it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, NamedTuple
from weakref import ReferenceType

from vramplan.analytic.autograd.chunks import Chunk
from vramplan.memory.kernel_buffers import BUFFERS
from vramplan.units import DTYPE_BYTES

if TYPE_CHECKING:
    from vramplan.analytic.autograd.saved_tensors import Packed
    from vramplan.analytic.autograd.tape import Tape
    from vramplan.inputs.gpu import Gpu

Grads = list["Tensor | None"]
Backward = Callable[..., Grads]


class StorageInfo(NamedTuple):
    """One allocation, as shown to the user."""

    num_bytes: int
    category: str
    module: str
    what: str
    shape: tuple[int, ...]
    dtype: str
    card: int = 0
    """Index of the GPU that it is on."""
    kernel: str = ""
    """The kernel whose buffer it is, if the GPU decides its size: `shape` are the numbers that the size follows from,
    and `num_bytes` is 0 until the GPU is known (:mod:`vramplan.memory.kernel_buffers`)."""

    def on(self, gpu: Gpu) -> StorageInfo:
        """The storage with its size on a GPU."""
        return self._replace(num_bytes=BUFFERS[self.kernel](self.shape, self.dtype, gpu)) if self.kernel else self


class Like(NamedTuple):
    """Shape and dtype of a tensor, without its memory."""

    shape: tuple[int, ...]
    dtype: str


class TakenGradient(NamedTuple):
    """A gradient that a weight without one took over, or copied: a later micro-step adds to it instead."""

    section: int
    """Number of its section."""
    event: int
    """Number of events before."""
    kernel: int
    """Number of kernels before."""
    storage: int | None
    """Id of the gradient's storage as it came; None if the tape did not allocate it."""
    info: StorageInfo | None
    """That storage as it came."""
    is_copied: bool
    """Whether the weight's gradient is a copy: the next storage that is allocated."""
    added_bytes: int
    """Bytes that an addition moves."""
    dtype: str
    is_used: bool
    """Whether backward still uses the storage that the weight took over: a later micro-step frees it after that."""


class LayerSection(NamedTuple):
    """A part of the record: one layer in one phase, or a chunk of it; `layer` is None outside the repeated layers."""

    phase: str
    layer: int | None
    first_event: int
    first_storage: int
    first_kernel: int
    run: int = 0
    """Number of the forward that it belongs to, if a step runs the model more than once."""
    ascends: bool = False
    """Whether it is a forward that runs within backward."""
    chunk: Chunk | None = None
    """The chunk of a loop that is simulated by a few of its chunks; None outside of such loops."""


class LiveStorage:
    """One allocation, freed by Python's reference count when PyTorch would free it."""

    __slots__ = ("emit", "id")

    def __init__(self, id: int, emit: Callable[[int], None]) -> None:
        self.id = id
        self.emit = emit

    @property
    def ids(self) -> tuple[int, ...]:
        """Numbers of the storages that it is in the record."""
        return (self.id,)

    def __del__(self) -> None:
        self.emit(~self.id)


class Resident:
    """Memory that outlives the step, as a parameter's: the tape neither allocates nor frees it."""

    __slots__ = ()


class Node:
    """One backward function: its edges to the next nodes, its saved tensors and its formula."""

    __slots__ = (
        "__weakref__", "attributes", "backward", "card", "chunk", "copies", "edges", "frame", "layer", "module",
        "num_grads", "packed", "run", "saved", "sequence", "slots",
    )  # fmt: skip

    def __init__(self, tape: Tape, inputs: tuple[Tensor, ...], backward: Backward, num_grads: int = 1) -> None:
        self.edges = [None if tensor.node is None else (tensor.node, tensor.index) for tensor in inputs]
        self.backward = backward
        self.saved: list[LiveStorage | Resident] = []
        self.packed: list[Packed] = []
        """Saved tensors that wait in host memory."""
        self.attributes: list[LiveStorage | Resident] = []
        self.frame: CheckpointFrame | None = None  # set with the first saved tensor, whose hooks hold it
        self.slots: list[int] = []
        tape.sequence += 1
        self.sequence = tape.sequence
        self.layer, self.run, self.chunk = tape.layer, tape.run + tape.replays, tape.chunk
        self.card = tape.card
        self.copies = tape.repeated.copies
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
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes, not rounded to the allocator's blocks."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    def view(self, *shape: int) -> Tensor:
        """The same storage with another shape; its gradient is a view too, so it has no node.

        As in PyTorch a view holds its base, also without gradients (DifferentiableViewMeta), so a storage with a view
        always has more than one holder.
        """
        return Tensor(self.tape, self.storage, shape, self.dtype, self.node, self.index, self.base or self)

    def detach(self) -> Tensor:
        """The same storage without autograd history."""
        return Tensor(self.tape, self.storage, self.shape, self.dtype)


class Accumulate(Node):
    """AccumulateGrad: the end of the graph at a leaf, which it keeps; it runs as soon as its gradient is complete."""

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
"""Part of the name of the trained copy of a frozen module (PEFT's ModulesToSaveWrapper)."""
OF_REFERENCE = ".ref"
"""End of the names of frozen adapters that only the reference uses (trl 1.16, trainer/dpo_trainer.py: add_adapter)."""
Stored = tuple[tuple[str, int, str], ...]
"""(name, bytes, formula) of each tensor of a quantized weight; empty if the weight is not quantized."""


class Parameter(Tensor):
    """A weight: resident memory, and a gradient if it trains."""

    __slots__ = ("card", "copies", "held_by_graph", "layer", "name", "quantize", "stored", "viewed")

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
        self.held_by_graph = False
        """Whether a graph keeps the weight's own memory until the graph is dropped (``ctx.tensors``)."""
        self.layer, self.card = tape.layer, tape.card
        self.copies = tape.repeated.copies
        """Number of experts whose weight of this name is simulated by this one."""
        self.viewed = False
        """Whether backward keeps a view of it; ZeRO-3 empties the weight, but not a view."""
        if trains:
            self.node = Accumulate(tape, self, name)

    def reordered(self) -> Parameter:
        """This parameter; its gradient has another memory layout than the weight and is copied (accumulate_grad.h)."""
        if isinstance(self.node, Accumulate):
            self.node.reorders = True
        return self

    @property
    def is_adapter(self) -> bool:
        """Whether it belongs to an adapter, by PEFT's names, and not to the model itself."""
        return ".lora_" in self.name or SAVED in self.name

    @property
    def is_of_reference(self) -> bool:
        """Whether it belongs to frozen adapters of the reference.

        PEFT lets them need a gradient while they are active (0.21, tuners/tuners_utils.py: set_adapter).
        """
        return self.name.endswith(OF_REFERENCE)

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
        """Its gradient; None if it has none or if the gradient does not stay."""
        return self.node.grad if isinstance(self.node, Accumulate) else None


def leaf(source: Tensor) -> Tensor:
    """`source` as a leaf that needs a gradient and keeps it (`enable_input_require_grads`)."""
    result = source.detach()
    result.node = Accumulate(source.tape, source)
    return result


class StopRecompute(Exception):
    """Raised inside a recomputed forward when the last saved tensor exists (checkpoint's early stop)."""


class CheckpointFrame:
    """One checkpointed call: its forward saved nothing; the first node that needs a saved tensor recomputes it.

    Mirrors torch/utils/checkpoint.py (non-reentrant, early stop on), torch 2.13.
    """

    __slots__ = ("autocast", "function", "inputs", "slots", "waiting")

    def __init__(
        self, function: Callable[..., object], inputs: tuple[Tensor | Packed, ...], autocast: str | None
    ) -> None:
        self.function = function
        self.inputs = inputs
        self.waiting: list[ReferenceType[Node]] = []
        """For each slot a weak reference to the node that saved the tensor (torch's weak_holders)."""
        self.slots: list[LiveStorage | Resident | None] | None = None
        self.autocast = autocast


def count_dependencies(roots: Iterable[Node]) -> dict[Node, int]:
    """Number of gradients that each node waits for (engine.cpp: compute_dependencies)."""
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


def detached(tensor: Tensor) -> Tensor:
    """`tensor` in a recomputed graph: a leaf that needs a gradient if the original does."""
    if tensor.node is None:
        return tensor
    leaf = tensor.detach()
    leaf.node = Node(tensor.tape, (), lambda *_: [])
    return leaf
