"""Fake tensors, quickly: shapes without data, on what passes for a CPU.

torch's own FakeTensorMode knows what every operation returns, but takes some 100 microseconds to say it again. Nearly
all operations of a step are repeats: their result follows from the metadata of what went in, and is kept here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

CPU = torch.device("cpu")
FACTORIES = {
    getattr(torch.ops.aten, name).default for name in ("arange", "zeros", "ones", "full", "zeros_like", "full_like")
} | {torch.ops.aten.arange.start, torch.ops.aten.arange.start_step}
"""Operations that make numbers out of nothing."""
MASKS = {torch.ops.aten.expand.default, torch.ops.aten.index.Tensor}
"""What picks elements by a mask."""
PLACING_FRAMES = ("_vl.py", "_vl_moe.py", "_qwen3_5.py", "_qwen3_5_moe.py", "_glm4v.py", "_glm4v_moe.py")
"""Files of transformers that give a video's frames positions in time."""
MOST_KNOWN = 1 << 20
"""Whole numbers of one tensor that are worked out, not only counted."""
Metadata = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@lru_cache(maxsize=4096)
def _is_plain(func: Any) -> bool:
    """Whether an operation returns one new tensor: no view, nothing written in place, nothing random by name."""
    schema = func._schema
    return (
        len(schema.returns) == 1
        and str(schema.returns[0].type) == "Tensor"
        and not any(one.alias_info is not None for one in (*schema.returns, *schema.arguments))
        and torch.Tag.dynamic_output_shape not in func.tags
        and torch.Tag.data_dependent_output not in func.tags
    )


@lru_cache(maxsize=4096)
def _is_view(func: Any) -> bool:
    """Whether an operation returns one tensor that shares the storage of its first argument."""
    if func is torch.ops.aten._unsafe_view.default:  # whose schema does not say so
        return True
    returns = func._schema.returns
    if func.namespace != "aten" or len(returns) != 1 or str(returns[0].type) != "Tensor":
        return False
    alias = returns[0].alias_info
    return alias is not None and not alias.is_write


def _key(value: Any) -> Any:
    """What of an argument decides the result's metadata."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, FakeTensor) or value.constant is not None:
            raise TypeError  # a number in disguise: let torch look at it
        return value.shape, value.stride(), value.dtype, value.storage_offset()
    if isinstance(value, (list, tuple)):
        return tuple([_key(one) for one in value])
    if isinstance(value, (int, float)):
        return type(value), value  # 1, 1.0 and True are the same key otherwise
    return value


def _shares(out: torch.Tensor, args: Any) -> bool:
    """Whether a result is an argument's storage after all, as `contiguous` may return it."""
    key = out.untyped_storage()._cdata
    return any(x.untyped_storage()._cdata == key for x in tree_leaves(args) if isinstance(x, torch.Tensor))


class Mode(FakeTensorMode):
    """Fake tensors, but whole numbers given by value stay known, and so does all that follows from them alone.

    Models look at where a text's images stand and how large they are to decide what to do.
    """

    def may_turn_const(self, t: torch.Tensor) -> bool:
        """Whether a result keeps its numbers; torch's own limit is a single one."""
        if t.device.type != "cpu":
            return super().may_turn_const(t)
        whole = not (t.is_floating_point() or t.is_complex())
        return (whole and t.numel() <= MOST_KNOWN) or super().may_turn_const(t) or _in_fractions()


class Fakes:
    """A FakeTensorMode that remembers; with `values` also the whole numbers that a model makes itself."""

    def __init__(self, values: bool = False) -> None:
        self.mode = Mode(allow_non_fake_inputs=False)
        self.values = values
        self.known: dict[Any, Metadata] = {}

    def __call__(self, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation on fake tensors."""
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if _is_view(func) and isinstance(args[0], FakeTensor) and args[0].constant is None:
            with in_kernel_invocation_manager(self.mode):
                view = func(*args, **kwargs)
            return FakeTensor(self.mode, view, CPU)
        if self.values and func in FACTORIES:
            known = self._known(func, args, kwargs)
            if known is not None:
                return known
        if self.values and func is torch.ops.aten.ne.Scalar and _asks_for_empty_images():
            return self._as_known(torch.ones(args[0].shape, dtype=torch.bool))
        if self.values and func in MASKS and _counts_features():
            found = self._by_known_mask(func, args)
            if found is not None:
                return found
        if not _is_plain(func):
            return self.mode.dispatch(func, types, args, kwargs)
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype is not torch.bfloat16:
            return self._grouped(func, args, kwargs)
        try:
            key = (func, _key(args), tuple([(name, _key(value)) for name, value in kwargs.items()]))
            known = self.known.get(key)
        except TypeError:
            return self.mode.dispatch(func, types, args, kwargs)
        if known is not None:
            shape, stride, dtype = known
            with in_kernel_invocation_manager(self.mode):
                empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            return FakeTensor(self.mode, empty, CPU)
        out = self.mode.dispatch(func, types, args, kwargs)
        if isinstance(out, FakeTensor) and out.constant is None and out.storage_offset() == 0:
            whole = out.untyped_storage().nbytes() == out.numel() * out.element_size()
            if whole and out.fake_device == CPU and not _shares(out, args):
                self.known[key] = (tuple(out.shape), out.stride(), out.dtype)
        return out

    def _grouped(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """A grouped product in another dtype than bf16, which the kernels take and torch's description does not.

        (torch 2.13, GroupedMMUtils.h: "Expected mat_a to be Float32, BFloat16 or Float16 matrix".)
        """
        stand_ins = [
            torch.empty_strided(one.shape, one.stride(), dtype=torch.bfloat16 if i < 2 else one.dtype, device="meta")
            for i, one in enumerate(args[:3])
        ]
        with in_kernel_invocation_manager(self.mode), no_dispatch():
            like = func(*stand_ins, *args[3:], **kwargs)
            empty = torch.empty_strided(like.shape, like.stride(), dtype=args[0].dtype, device="meta")
        return FakeTensor(self.mode, empty, CPU)

    def _known(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """What a factory makes, by value; None where that is no tensor of few whole numbers."""
        with in_kernel_invocation_manager(self.mode):
            shape = func(*args, **{**kwargs, "device": "meta"})
        if shape.is_floating_point() or shape.numel() > MOST_KNOWN:
            return None
        with no_dispatch():
            like = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype) if _is_fake(a) else a for a in args]
            real = func(*like, **{**kwargs, "device": CPU})
        return self._as_known(real)

    def _by_known_mask(self, func: Any, args: Any) -> torch.Tensor | None:
        """A known mask of any size expanded, or what it picks; None where no such mask is given."""
        expands = func is torch.ops.aten.expand.default
        mask = args[0] if expands else args[1][0]
        if not _is_fake(mask) or mask.constant is None or mask.dtype is not torch.bool:
            return None
        with no_dispatch():
            real = mask.constant.expand(args[1]) if expands else mask.constant.sum()
        if expands:
            return self._as_known(real)
        shape = (int(real), *args[0].shape[mask.dim() :])
        with in_kernel_invocation_manager(self.mode):
            picked = torch.empty(shape, dtype=args[0].dtype, device="meta")
        return FakeTensor(self.mode, picked, CPU)

    def _as_known(self, real: torch.Tensor) -> torch.Tensor:
        """A fake tensor whose numbers are known."""
        return self.mode.fake_tensor_converter.from_real_tensor(self.mode, real, make_constant=True)


def _asks_for_empty_images() -> bool:
    """Whether Idefics 3 or SmolVLM look for images that are all zero; a trace's are taken as full."""
    return _within(("modeling_idefics3.py", "modeling_smolvlm.py")) == "get_image_features"


def _in_fractions() -> bool:
    """Whether whole numbers go through fractions: Gemma 4's pooled places with an image, Qwen's and GLM's frames."""
    return (
        _within(("modeling_gemma4.py",)) == "_avg_pool_by_positions"
        or _within(PLACING_FRAMES) == "get_vision_position_ids"
    )


def _counts_features() -> bool:
    """Whether Gemma 4 picks out, only to count them, all elements that stand where images do."""
    return _within(("modeling_gemma4.py",)) == "forward"


def _within(files: tuple[str, ...]) -> str:
    """The innermost function of these files that is running."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(files):
            return str(frame.f_code.co_name)
        frame = frame.f_back
    return ""


def _is_fake(value: Any) -> bool:
    return isinstance(value, FakeTensor)


@contextmanager
def tensors_in_lists() -> Iterator[None]:
    """``torch.tensor([a, b])`` of fake scalars: torch reads their memory, where nothing is."""
    original = torch.tensor

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, (list, tuple)) and any(isinstance(one, FakeTensor) for one in data):
            data = [one.item() if isinstance(one, FakeTensor) else one for one in data]
        return original(data, *args, **kwargs)

    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = original
