"""Values that host code looks at, computed on the host.

Kernels do not run on an emulated GPU, so its memory keeps what small copies left there. Host code looks at few values:
masks, positions, the places of image tokens, counts, norms. They are small integers, or floating-point scalars. Each
operation on such tensors alone runs as always, for its memory, and once more on the host, for its values: the memory of
an emulated GPU is memory of this process, so a tensor of the host can lie at the same address.

Larger tensors count as zeros: sums and norms are zero, and the largest values are the first ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import _tensor_str
from torch.utils._python_dispatch import TorchDispatchMode

INTEGER_BYTES = 4 << 20
"""Of one tensor of integers or booleans: larger ones are not computed, as larger copies are not made either."""
FLOAT_BYTES = 4096
"""Of one tensor of floating-point numbers."""
DYNAMIC = (
    "aten::nonzero",
    "aten::masked_select",
    "aten::masked_scatter_backward",
    "aten::unique",
    "aten::_unique",
    "aten::repeat_interleave",
    "aten::bincount",
)
"""Operations whose result's size depends on values."""
ORDERED = ("aten::topk", "aten::sort", "aten::argsort")
"""Their indices are those of values that are in order already."""
NESTED = "torch.nested._internal.nested_tensor"
"""The module of jagged tensors, which have plain tensors of values and of offsets."""
UNWRITTEN = ("aten::empty", "aten::new_empty")
"""Tensors that a kernel would write later: zeros until then, not what their memory held before."""
TRUE_OF_ZEROS = ("aten::eq", "aten::ge", "aten::le", "aten::isfinite")
"""Comparisons that are true if all values are zero."""

_mode: HostValues | None = None
_original_str: Any = _tensor_str._str


def start() -> None:
    """Compute the small values of this process from now on; autograd passes the mode on to its threads."""
    global _mode
    if _mode is None and torch.version.cuda is not None:
        _mode = HostValues()
        _mode.__enter__()
        _tensor_str._str = _printed  # printing disables modes, and reads how many values differ from zero
        if not hasattr(TorchDispatchMode, "ignore_compile_internals"):
            torch.compile = _not_compiled  # an older PyTorch would leave functions as they are, without a word


def _not_compiled(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(f"torch.compile needs a newer PyTorch than {torch.__version__} on an emulated GPU")


def _printed(tensor: Any, *, tensor_contents: str | None = None) -> str:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_cuda
    return _original_str(_on_host(tensor.detach()) if plain else tensor, tensor_contents=tensor_contents)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether its values are known: a view of a larger tensor has none, since larger operations did not write them."""
    limit = INTEGER_BYTES if _is_integer(tensor) else FLOAT_BYTES
    size = tensor.numel() * tensor.element_size()
    return size <= limit and tensor.untyped_storage().nbytes() <= limit


def _on_host(value: Any) -> Any:
    """A tensor of the host at the same address, or zeros for a large one; lists likewise, other values as they are."""
    if isinstance(value, (list, tuple)):
        return type(value)(_on_host(item) for item in value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = value.untyped_storage()
    if not storage.nbytes() or not _is_small(value):
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=value.dtype, count=storage.nbytes() // value.element_size())
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _fill(results: Any, values: Any) -> None:
    """Copy the host's values into the results of the same operation on the GPU."""
    for result, value in zip(_tensors([results]), _tensors([values]), strict=False):
        if result.shape == value.shape and _is_small(result):
            _on_host(result).copy_(value)


class _Operation:
    """What matters of an operation's schema."""

    def __init__(self, function: Any) -> None:
        schema = function._schema
        aliases = [returned.alias_info for returned in schema.returns]
        self.is_arithmetic = function.namespace == "aten" and not any(  # views share the memory of their input
            alias is not None and not alias.is_write for alias in aliases
        )
        self.writes = schema.is_mutable
        self.is_dynamic = schema.name.startswith(DYNAMIC)
        second = schema.arguments[1].name if len(schema.arguments) > 1 else ""
        self.is_index = second == "indices" and schema.name.startswith(("aten::index", "aten::_index_put"))
        self.is_ordered = schema.name in ORDERED
        self.is_unwritten = schema.name.startswith(UNWRITTEN)
        self.is_true_of_zeros = schema.name in TRUE_OF_ZEROS


class HostValues(TorchDispatchMode):
    """Sees every operation below autograd; calls it, and repeats those on small tensors on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[Any, _Operation] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile, instead of leaving functions as they are in any mode."""
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__module__ == NESTED for kind in types):
            return NotImplemented  # its own operations on plain tensors are seen
        kwargs = kwargs or {}
        operation = self.operations.get(function)
        if operation is None:
            operation = self.operations[function] = _Operation(function)
        if not operation.is_arithmetic:
            return function(*args, **kwargs)
        tensors = list(_tensors((*args, *kwargs.values())))
        if any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors):
            return function(*args, **kwargs)
        device = kwargs.get("device")
        is_on_gpu = any(tensor.is_cuda for tensor in tensors) or (
            device is not None and torch.device(device).type == "cuda"
        )
        if not is_on_gpu:
            return function(*args, **kwargs)
        if operation.is_index:
            args = (args[0], _numbered(args[1]), *args[2:])
            tensors = list(_tensors((*args, *kwargs.values())))
        if operation.is_dynamic:
            return _moved(_host_values(function, args, kwargs))
        if operation.is_unwritten or "generator" in kwargs or not all(_is_small(tensor) for tensor in tensors):
            return self._of_zeros(function, operation, args, kwargs)
        results = function(*args, **kwargs)
        if not all(_is_small(result) for result in _tensors([results])):
            return results
        try:
            values = _host_values(function, args, kwargs)
        except (RuntimeError, IndexError):  # some operations exist for GPUs only
            return results
        if not isinstance(results, (torch.Tensor, list, tuple)):
            return values  # a number or a truth value
        if not operation.writes:
            _fill(results, values)
        return results

    def _of_zeros(self, function: Any, operation: _Operation, args: Any, kwargs: Any) -> Any:
        """The input has no values, or some of it is large: small results are those of zeros."""
        results = function(*args, **kwargs)
        if operation.writes:
            return results
        for result in _tensors([results]):
            if not result.is_cuda or not result.numel() or not _is_small(result):
                continue
            if operation.is_ordered and result.dim() and _is_integer(result):
                _on_host(result).copy_(torch.arange(result.shape[-1]).expand(result.shape))
            else:
                _on_host(result).fill_(int(operation.is_true_of_zeros))
        return results


def _host_values(function: Any, args: Any, kwargs: Any) -> Any:
    """The result of the operation on the host; one that writes has written to the GPU's memory."""
    return function(*_on_host(tuple(args)), **{name: _on_host(value) for name, value in kwargs.items()})


def _moved(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values.cuda()
    return type(values)(_moved(value) for value in values)


def _numbered(indices: Any) -> Any:
    """Masks of an index as positions, since their number has to be known; a tensor of positions stays as it is."""
    numbers: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.is_cuda and index.dtype == torch.bool:
            numbers.extend(part.cuda() for part in _on_host(index).nonzero(as_tuple=True))
        else:
            numbers.append(index)
    return numbers
