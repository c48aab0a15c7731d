"""Track a step: every storage that PyTorch allocates and frees, with the module and the operation that created it.

Fake tensors, which have no data, are tracked as real ones are. Storages are tracked, not tensors: views share one. A
storage is freed with the last reference from Python and C++, which a weak reference to its Python object detects.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vramplan.inputs.gpu import Gpu
from vramplan.memory.buffer import Buffer
from vramplan.memory.overheads import cublas_workspace
from vramplan.memory.timeline import Mark, Timeline
from vramplan.step_time.kernels import Kernel
from vramplan.torch_backend.dtypes import NAMES
from vramplan.torch_backend.trace import cuda_kernels
from vramplan.torch_backend.trace.fake_tensors import Fakes
from vramplan.torch_backend.trace.gradient_sums import GradientSums
from vramplan.torch_backend.trace.host_reads import NEEDS_DATA
from vramplan.torch_backend.trace.records import Record
from vramplan.torch_backend.trace.workspaces import PRODUCTS, workspaces


class StorageTracker(TorchDispatchMode):
    """Records allocations and frees while it is active, with the phase and the running module of each."""

    def __init__(
        self,
        fakes: Fakes | None = None,
        answer: Callable[[Any, Any, Callable[[], str]], Any] | None = None,
        gpu: Gpu | None = None,
    ) -> None:
        super().__init__()
        self.gpu = gpu
        """The GPU whose kernels allocate memory themselves; None: tensors alone are recorded."""
        self._handles: set[bool] = set()
        """Threads that have a cuBLAS handle: whether it is backward's."""
        self.sums = GradientSums()
        self.records: list[Record] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self.work: dict[str, list[Kernel]] = {}
        """Kernels of each phase, of the first time that it runs."""
        self._fakes, self._run = fakes, _run_really if fakes is None else fakes
        self.answer = answer
        """Returns the result of an operation that needs data, or NotImplemented."""
        self.phase = ""
        self.on_host = False
        self._kernels: list[Kernel] | None = None
        self._live: dict[int, weakref.ref[Any]] = {}
        self._formulas = 0
        self._stack: list[str] = []
        self._sequence: list[int] = []
        self._paths: list[str] = []

    # -- phases and modules --------------------------------------------------------------------------------------------

    def enter(self, phase: str) -> None:
        """Start `phase`."""
        self.phase = phase
        self._stack.clear()
        ran_before = phase in self.work and self._kernels is not self.work[phase]
        self._kernels = None if ran_before else self.work.setdefault(phase, [])
        if not self.marks or self.marks[-1].phase != phase:
            self.marks.append(Mark(phase, len(self.events)))

    @contextmanager
    def modules(self, model: torch.nn.Module) -> Iterator[None]:
        """Inside, record which module of `model` runs: in forward by hooks, in backward by sequence numbers."""
        paths: dict[int, str] = {}
        for path, module in model.named_modules():
            paths.setdefault(id(module), path)
        sequence_number = torch._C._autograd._get_sequence_nr

        def note(path: str) -> None:
            self._sequence.append(sequence_number())
            self._paths.append(path)

        def before(module: torch.nn.Module, inputs: Any) -> None:
            path = paths.get(id(module))
            if path is not None:
                self._stack.append(path)
                note(path)

        def after(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if id(module) in paths and self._stack:
                self._stack.pop()
                note(self._stack[-1] if self._stack else "")

        hooks = [
            torch.nn.modules.module.register_module_forward_pre_hook(before),
            torch.nn.modules.module.register_module_forward_hook(after, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def is_fake(self) -> bool:
        """Whether it follows tensors without data."""
        return self._fakes is not None

    @property
    def in_forward(self) -> bool:
        """Whether a forward runs: the step's own, or one that checkpointing recomputes."""
        return bool(self._stack) or self.phase in ("forward", "eval")

    def module(self) -> str:
        """Path of the running module, or of the module whose forward created the running autograd node."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        index = bisect_right(self._sequence, node._sequence_nr()) - 1
        return self._paths[index] if index >= 0 else ""

    # -- allocations and frees -----------------------------------------------------------------------------------------

    def allocate(self, record: Record) -> int:
        """Record an allocation; returns the storage's number, for :meth:`free`."""
        number = len(self.records)
        record.in_forward, record.age = self.in_forward, self._formulas
        self.records.append(record)
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        """Record the free of storage `number`; it outlived its forward if a backward formula ran since its creation.

        (A forward recomputed by checkpointing stops early, and drops its locals, before any formula runs.)
        """
        record = self.records[number]
        record.outlives = record.in_forward and not self.in_forward and self._formulas > record.age
        self.events.append(~number)

    def take(self, tensor: torch.Tensor, op: str, module: str | None = None) -> int | None:
        """Track a tensor's storage from now on; returns its number, None if it is not new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return None
        num_bytes = storage.nbytes()
        number: int | None = None
        if num_bytes and not self.on_host:
            path = self.module() if module is None else module
            dtype = NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
            number = self.allocate(Record(num_bytes, op, path, tuple(tensor.shape), dtype))
        self._live[key] = weakref.ref(storage, partial(self._on_free, key, number))
        return number

    def _on_free(self, key: int, number: int | None, _: Any) -> None:
        self._live.pop(key, None)
        if number is not None:
            self.free(number)

    @contextmanager
    def host(self) -> Iterator[None]:
        """Inside, new tensors are on the host, not on the GPU."""
        outer, self.on_host = self.on_host, True
        try:
            yield
        finally:
            self.on_host = outer

    @contextmanager
    def called(self, name: str) -> Iterator[None]:
        """Inside, new storages are labelled `name`."""
        first = len(self.records)
        yield
        for record in self.records[first:]:
            record.op = name

    def categorize(self, category: str, values: Iterable[Any], name: str = "") -> None:
        """Set the category and the label of these tensors' storages, unless they have a category."""
        for value in values:
            number = self.number_of(value) if isinstance(value, torch.Tensor) else None
            if number is not None and not self.records[number].category:
                self.records[number].category = category
                self.records[number].op = name or self.records[number].op

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage; None if it is not tracked."""
        reference = self._live.get(tensor.untyped_storage()._cdata)
        callback = reference.__callback__ if reference is not None else None
        return callback.args[1] if isinstance(callback, partial) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # reads a device or layout
            return self._run(func, types, args, kwargs)
        if self.answer is not None and func in NEEDS_DATA:
            with self._fakes.mode if self._fakes else nullcontext():
                result = self.answer(func, args, self.module)
            if result is not NotImplemented:
                if isinstance(result, torch.Tensor):
                    self.take(result, _short(func))
                return result
        if self.sums.is_in_place(func, args):
            return args[0] if self._run is not _run_really else args[0].add_(args[1])
        func = cuda_kernels.without_subclasses(func)
        if self.phase == "backward" and not self._stack:
            self._formulas += 1
        out = self._run(func, types, args, kwargs)
        op = _short(func)
        if isinstance(out, torch.Tensor):
            self._take_output(func, op, out)
        else:
            if self._fakes is not None:
                out = cuda_kernels.as_on_cuda(func, out)
            for leaf in cuda_kernels.in_order(func, tree_leaves(out)):
                if isinstance(leaf, torch.Tensor):
                    self._take_output(func, op, leaf)
        self._allocate_inside(func, args, out)
        if self._kernels is not None:
            self._kernels.append(cuda_kernels.work(func, args, kwargs, out))
        return out

    def _take_output(self, func: Any, op: str, tensor: torch.Tensor) -> None:
        if func is torch.ops.aten.lift_fresh.default and tensor.dim() == 0:  # torch.tensor(1.0) is a host scalar
            with self.host():
                self.take(tensor, op)
        else:
            self.take(tensor, op)

    def _allocate_inside(self, func: Any, args: Any, out: Any) -> None:
        """The memory that `func` allocates itself, and cuBLAS's workspace at the first product of each thread."""
        if self.gpu is None:
            return
        if func in PRODUCTS and (thread := self.phase == "backward") not in self._handles:
            self._handles.add(thread)
            handle = cublas_workspace(self.gpu)
            self.allocate(
                Record(
                    handle.num_bytes, handle.label, "", (handle.num_bytes,), "uint8", handle.category, in_kernel=True
                )
            )
        numbers = []
        for one in workspaces(func, args, out):
            buffer = one.size if isinstance(one.size, Buffer) else None
            size = one.size.num_bytes(self.gpu) if isinstance(one.size, Buffer) else one.size
            name = f"{_short(func)} {one.name}"
            numbers.append(
                self.allocate(Record(size, name, self.module(), (size,), "uint8", in_kernel=True, buffer=buffer))
            )
            if one.passes:
                self.free(numbers.pop())
        for number in reversed(numbers):  # as at the end of a scope in C++
            self.free(number)

    # -- the timeline --------------------------------------------------------------------------------------------------

    def timeline(self, vocabulary: int | None, upto: int | None = None) -> Timeline:
        """The timeline of all events up to `upto`; storages as wide as `vocabulary` are logits."""
        storages = [record.described(vocabulary) for record in self.records]
        events = self.events if upto is None else self.events[:upto]
        marks = [mark for mark in self.marks if mark.first_event < len(events)]
        return Timeline.of(storages, events, marks)


def _run_really(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


@lru_cache(maxsize=4096)
def _short(func: Any) -> str:
    """aten.mm.default -> mm."""
    return str(func).split(".")[1]
