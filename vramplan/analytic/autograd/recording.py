"""The record of a simulated step: storages as they are allocated, the work of kernels, sections of phase and layer."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from vramplan.analytic.autograd.buffer_names import BUFFER_NAMES
from vramplan.analytic.autograd.chunks import Chunk, simulated_chunks
from vramplan.analytic.autograd.graph import LayerSection, LiveStorage, StorageInfo
from vramplan.analytic.autograd.repeated_experts import RepeatedExperts
from vramplan.step_time.kernels import ELEMENTWISE, MATMUL, Kernel
from vramplan.units import DTYPE_BYTES


class Recording:
    """Events in order: ``i`` allocates storage ``i``, ``~i`` frees it. Sections are opened by :meth:`enter`."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.storages: list[StorageInfo] = []
        self.transient_gradients: set[int] = set()
        """Ids of gradient storages that are freed as soon as they are produced: added to an earlier gradient, or
        consumed by a ZeRO or FSDP hook (`gives_gradients`)."""
        self.repeated = RepeatedExperts(self.events, self.storages, self.transient_gradients)
        self.kernels: list[Kernel] = []
        self.first_products: dict[tuple[int, bool], int] = {}
        """The first storage allocated at a matrix product, by GPU and whether backward runs: each of the two threads
        has a cuBLAS handle, whose workspace follows it."""
        self.sections: list[LayerSection] = []
        self.phase = ""
        self.layer: int | None = None
        self.chunk: Chunk | None = None
        self.run = 0
        """Number of the model's forward in this phase: a step may have several."""
        self.replays = False
        """Whether a forward runs within backward; the nodes that it makes belong to the next run."""
        self.card = 0
        """Index of the GPU that ops allocate on."""
        self.owner = ""
        """In front of the names of modules outside of layers, if a second model trains and runs (``value_model.``)."""
        self._module = ""
        self.in_backward = False

    @property
    def module(self) -> str:
        """Name of the module that runs."""
        return self._module

    @module.setter
    def module(self, name: str) -> None:
        self._module = self.named(name)

    def named(self, name: str) -> str:
        """A module's or weight's name, with its owner's in front: layers of the models have numbers of their own."""
        return self.owner + name if self.owner and self.layer is None else name

    def enter(self, phase: str, layer: int | None, chunk: Chunk | None = None) -> None:
        """Open a section: all that follows belongs to `layer` in `phase`, in the forward number `run`, or a chunk."""
        place = phase, layer, chunk, self.run
        if self.sections and (self.phase, self.layer, self.chunk, self.sections[-1].run) == place:
            return
        self.phase, self.layer, self.chunk = phase, layer, chunk
        first = len(self.events), len(self.storages), len(self.kernels)
        self.sections.append(LayerSection(phase, layer, *first, self.run, self.replays, chunk))

    def chunks(self, count: int) -> Iterator[None]:
        """The chunks to simulate of a loop over `count` equal ones, in order; nothing else may be in one of them."""
        for chunk in simulated_chunks(count):
            self.enter(self.phase, self.layer, chunk)
            yield
        self.enter(self.phase, self.layer)

    def allocate(self, shape: tuple[int, ...], dtype: str, what: str, category: str = "") -> LiveStorage:
        """A new storage. Its category defaults to activation in forward and temporary in backward."""
        storages = self.storages
        id = len(storages)
        if not category:
            category = "temporary" if self.in_backward else "activation"
        storages.append(
            StorageInfo(prod(shape) * DTYPE_BYTES[dtype], category, self._module, what, shape, dtype, self.card)
        )
        self.events.append(id)
        return self.repeated.storage(id) if self.repeated.copies > 1 else LiveStorage(id, self.events.append)

    def buffer(self, kernel: str, numbers: tuple[int, ...], dtype: str) -> LiveStorage:
        """Memory that a kernel allocates until its caller drops it; its size depends on the GPU.

        Args:
            kernel: a key of :data:`vramplan.memory.kernel_buffers.BUFFERS`.
            numbers: what the size follows from.
            dtype: the dtype that the kernel reads.
        """
        id = len(self.storages)
        what = BUFFER_NAMES[kernel]
        self.storages.append(StorageInfo(0, "workspace", self._module, what, numbers, dtype, self.card, kernel))
        self.events.append(id)
        return self.repeated.storage(id) if self.repeated.copies > 1 else LiveStorage(id, self.events.append)

    def work(
        self,
        flops: int,
        moved_bytes: int,
        dtype: str,
        launches: int = 1,
        kind: str = ELEMENTWISE,
        results: int = 0,
    ) -> None:
        """Record the work of one op; see :class:`Kernel`."""
        times = self.repeated.copies
        work = times * flops, times * moved_bytes, times * launches
        self.kernels.append(Kernel(*work, dtype, kind, times * results))

    def product(self, flops: int, moved_bytes: int, dtype: str, results: int, launches: int = 1) -> None:
        """Record the work of a matrix product with so many elements of the result, which is allocated next."""
        handle = self.card, self.phase[:1] == "b"
        if handle not in self.first_products:
            self.first_products[handle] = len(self.storages)
        self.work(flops, moved_bytes, dtype, launches, MATMUL, results)
