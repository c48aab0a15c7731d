"""Watching a step: every storage that torch makes and drops, with the module and the op that made it.

The same watch sees fake tensors, which hold no data, and real ones. It follows storages, not tensors: views share one,
and a storage is gone when Python's and C++'s last reference is, which a weak reference to its Python half tells.
"""

from __future__ import annotations

import re
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vramplan.memory.roofline import Kernel
from vramplan.memory.timeline import Mark, Storage, Timeline
from vramplan.torch_backend.dtypes import NAMES
from vramplan.torch_backend.trace import cuda_kernels
from vramplan.torch_backend.trace.fake_tensors import Fakes
from vramplan.torch_backend.trace.gradient_sums import Sums
from vramplan.torch_backend.trace.host_reads import NEEDS_DATA


@dataclass(slots=True)
class Record:
    """One storage as the watch saw it."""

    num_bytes: int
    op: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    category: str = ""
    in_kernel: bool = False
    in_forward: bool = False
    age: int = 0
    """Backward formulas that had run when it was made."""
    outlives: bool = False
    """Made in a forward, and kept for backward."""


class Watch(TorchDispatchMode):
    """Records allocations and frees while it is active; `phase` and the module that runs are noted with each."""

    def __init__(
        self, fakes: Fakes | None = None, answer: Callable[[Any, Any, Callable[[], str]], Any] | None = None
    ) -> None:
        super().__init__()
        self.sums = Sums()
        self.records: list[Record] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self.work: dict[str, list[Kernel]] = {}
        """Work of each op in the first stretch of each phase."""
        self._fakes, self._run = fakes, _really if fakes is None else fakes
        self.answer = answer
        """Asked first: what an operation returns that needs data which is not there; else NotImplemented."""
        self.phase = ""
        self.on_host = False
        self._working: list[Kernel] | None = None
        self._live: dict[int, weakref.ref[Any]] = {}
        self._formulas = 0
        self._stack: list[str] = []
        self._sequence: list[int] = []
        self._paths: list[str] = []

    # -- where the step is ---------------------------------------------------------------------------------------------

    def enter(self, phase: str) -> None:
        """What follows belongs to `phase`."""
        self.phase = phase
        self._stack.clear()
        seen = phase in self.work and self._working is not self.work[phase]
        self._working = None if seen else self.work.setdefault(phase, [])
        if not self.marks or self.marks[-1].phase != phase:
            self.marks.append(Mark(phase, len(self.events)))

    @contextmanager
    def modules(self, model: torch.nn.Module) -> Iterator[None]:
        """Know which of `model`'s modules runs, forward and, by the number of its autograd nodes, backward."""
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
    def in_forward(self) -> bool:
        """Whether a forward runs: the step's own, or one that checkpointing runs again."""
        return bool(self._stack) or self.phase in ("forward", "eval")

    def module(self) -> str:
        """Path of the module that runs now, or whose forward made the autograd node that runs now."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        index = bisect_right(self._sequence, node._sequence_nr()) - 1
        return self._paths[index] if index >= 0 else ""

    # -- what it sees --------------------------------------------------------------------------------------------------

    def allocate(self, record: Record) -> int:
        """Note an allocation; returns the number to free it by."""
        number = len(self.records)
        record.in_forward, record.age = self.in_forward, self._formulas
        self.records.append(record)
        self.events.append(number)
        return number

    def free(self, number: int) -> None:
        """Note that storage `number` is gone; it was kept if a backward formula has run since it was made.

        (A forward that checkpointing runs again is broken off, and drops its locals, before any formula runs.)
        """
        record = self.records[number]
        record.outlives = record.in_forward and not self.in_forward and self._formulas > record.age
        self.events.append(~number)

    def take(self, tensor: torch.Tensor, op: str, module: str | None = None) -> int | None:
        """Follow a tensor's storage from now on, if it is a new one; returns its number."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return None
        num_bytes = storage.nbytes()
        number: int | None = None
        if num_bytes and not self.on_host:
            where = self.module() if module is None else module
            dtype = NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")
            number = self.allocate(Record(num_bytes, op, where, tuple(tensor.shape), dtype))
        self._live[key] = weakref.ref(storage, partial(self._gone, key, number))
        return number

    def _gone(self, key: int, number: int | None, _: Any) -> None:
        self._live.pop(key, None)
        if number is not None:
            self.free(number)

    @contextmanager
    def host(self) -> Iterator[None]:
        """What is made here lies in the host's memory, not on the card."""
        before, self.on_host = self.on_host, True
        try:
            yield
        finally:
            self.on_host = before

    @contextmanager
    def called(self, name: str) -> Iterator[None]:
        """What is made here is called `name`."""
        first = len(self.records)
        yield
        for record in self.records[first:]:
            record.op = name

    def categorize(self, category: str, values: Iterable[Any], name: str = "") -> None:
        """Say what the storages behind these tensors are for, and how they are called, where nothing was said yet."""
        for value in values:
            number = self.number_of(value) if isinstance(value, torch.Tensor) else None
            if number is not None and not self.records[number].category:
                self.records[number].category = category
                self.records[number].op = name or self.records[number].op

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the storage behind a tensor, if it is followed."""
        reference = self._live.get(tensor.untyped_storage()._cdata)
        callback = reference.__callback__ if reference is not None else None
        return callback.args[1] if isinstance(callback, partial) else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # asks for a device or layout
            return self._run(func, types, args, kwargs)
        if self.answer is not None and func in NEEDS_DATA:
            with self._fakes.mode if self._fakes else nullcontext():
                known = self.answer(func, args, self.module)
            if known is not NotImplemented:
                if isinstance(known, torch.Tensor):
                    self.take(known, _short(func))
                return known
        if self.sums.of(func, args):
            return args[0] if self._run is not _really else args[0].add_(args[1])
        func = cuda_kernels.without_subclasses(func)
        if self.phase == "backward" and not self._stack:
            self._formulas += 1
        out = self._run(func, types, args, kwargs)
        op = _short(func)
        if isinstance(out, torch.Tensor):
            self._see(func, op, out)
        else:
            if self._fakes is not None:
                out = cuda_kernels.as_on_cuda(func, out)
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self._see(func, op, leaf)
        held = [self._workspace(name, size, func) for name, size in cuda_kernels.workspaces(func, args, out)]
        for number in reversed(held):  # as C++ leaves a scope
            self.free(number)
        if self._working is not None:
            self._working.append(cuda_kernels.work(func, args, kwargs, out))
        return out

    def _see(self, func: Any, op: str, tensor: torch.Tensor) -> None:
        if func is torch.ops.aten.lift_fresh.default and tensor.dim() == 0:  # torch.tensor(1.0) is a host scalar
            with self.host():
                self.take(tensor, op)
        else:
            self.take(tensor, op)

    def _workspace(self, name: str, num_bytes: int, func: Any) -> int:
        record = Record(num_bytes, f"{_short(func)} {name}", self.module(), (num_bytes,), "uint8")
        record.in_kernel = True
        return self.allocate(record)

    # -- what comes out ------------------------------------------------------------------------------------------------

    def timeline(self, vocabulary: int | None, upto: int | None = None) -> Timeline:
        """Everything seen up to event `upto`, as the result shows it."""
        storages = [_describe(record, vocabulary) for record in self.records]
        events = self.events if upto is None else self.events[:upto]
        marks = [mark for mark in self.marks if mark.first_event < len(events)]
        return Timeline(storages, events, marks)


def _really(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


@lru_cache(maxsize=4096)
def _short(func: Any) -> str:
    """aten.mm.default -> mm."""
    return str(func).split(".")[1]


def _describe(record: Record, vocabulary: int | None) -> Storage:
    """A record as the timeline shows it."""
    category = record.category
    if not category:
        category = "activation" if record.outlives and not record.in_kernel else "temporary"
        if vocabulary is not None and record.shape and record.shape[-1] == vocabulary and not record.in_kernel:
            category = "logits"
    return _storage(
        record.num_bytes, category, collapse(record.module), record.op, record.shape, record.dtype, record.in_kernel
    )


@lru_cache(maxsize=1 << 16)
def _storage(
    num_bytes: int, category: str, module: str, op: str, shape: tuple[int, ...], dtype: str, in_kernel: bool
) -> Storage:
    formula = f"{' x '.join(map(str, shape)) or 'scalar'} {dtype}"
    return Storage(num_bytes, category, f"{module} {op}".strip(), formula, in_kernel)


_WRAPPERS = re.compile(r"^(base_model\.model\.)?((model|transformer|gpt_neox|language_model|decoder)\.)*")


@lru_cache(maxsize=1 << 16)
def collapse(path: str) -> str:
    """A module's path for people: layers share one.

    >>> collapse("base_model.model.model.layers.31.self_attn.q_proj")
    'layers.*.self_attn.q_proj'
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", _WRAPPERS.sub("", path))
