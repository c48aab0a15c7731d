"""Fake tensors with a cache: shapes without data, on a pretended CPU.

PyTorch's FakeTensorMode takes about 100 microseconds for an operation. Nearly all operations of a step are repeats: the
metadata of their result depends only on the metadata of their arguments, and is cached here.
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

from vramplan.torch_backend.trace import codec, speech

CPU = torch.device("cpu")
FACTORIES = {
    getattr(torch.ops.aten, name).default for name in ("arange", "zeros", "ones", "full", "zeros_like", "full_like")
} | {torch.ops.aten.arange.start, torch.ops.aten.arange.start_step}
"""Operations that create tensors of given numbers."""
MASKS = {torch.ops.aten.expand.default, torch.ops.aten.index.Tensor}
"""Operations that expand a mask, or select elements by one."""
FRAME_POSITION_FILES = (
    "_vl.py",
    "_vl_moe.py",
    "_qwen3_5.py",
    "_qwen3_5_moe.py",
    "_glm4v.py",
    "_glm4v_moe.py",
    "_glm46v.py",
)
"""Files of transformers that compute positions in time for the frames of a video."""
ROPE_FUNCTIONS = ("get_rope_index", "<listcomp>", "get_llm_pos_ids_for_vision")
"""Functions of Qwen3-Omni that compute positions in floats (a list in one is a function of its own before 3.12)."""
MAX_CONSTANT_NUMEL = 1 << 20
"""Integer tensors of at most this many elements keep their values."""
Metadata = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@lru_cache(maxsize=4096)
def _is_plain(func: Any) -> bool:
    """Whether an operation returns one new tensor: no view, nothing in place, no shape that depends on data."""
    schema = func._schema
    return (
        len(schema.returns) == 1
        and str(schema.returns[0].type) == "Tensor"
        and not any(value.alias_info is not None for value in (*schema.returns, *schema.arguments))
        and torch.Tag.dynamic_output_shape not in func.tags
        and torch.Tag.data_dependent_output not in func.tags
    )


@lru_cache(maxsize=4096)
def _is_view(func: Any) -> bool:
    """Whether an operation returns one tensor that shares the storage of its first argument."""
    if func is torch.ops.aten._unsafe_view.default:  # a view, though its schema does not tell
        return True
    returns = func._schema.returns
    if func.namespace != "aten" or len(returns) != 1 or str(returns[0].type) != "Tensor":
        return False
    alias = returns[0].alias_info
    return alias is not None and not alias.is_write


def _key(value: Any) -> Any:
    """The part of an argument that decides the result's metadata, as a key of the cache."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, FakeTensor) or value.constant is not None:
            raise TypeError  # has values: left to FakeTensorMode
        return value.shape, value.stride(), value.dtype, value.storage_offset()
    if isinstance(value, (list, tuple)):
        return tuple([_key(element) for element in value])
    if isinstance(value, (int, float)):
        return type(value), value  # 1, 1.0 and True would be the same key
    return value


def _shares(out: torch.Tensor, args: Any) -> bool:
    """Whether a result shares the storage of an argument, as that of `contiguous` may."""
    key = out.untyped_storage()._cdata
    return any(x.untyped_storage()._cdata == key for x in tree_leaves(args) if isinstance(x, torch.Tensor))


class ConstantsMode(FakeTensorMode):
    """A FakeTensorMode in which integer tensors created from values keep them, as do results computed from them.

    Vision-language models read the positions and sizes of images to decide what to do.
    """

    def may_turn_const(self, t: torch.Tensor) -> bool:
        """Whether a result keeps its values; PyTorch's limit is one element."""
        if t.device.type != "cpu":
            return super().may_turn_const(t)
        is_integer = not (t.is_floating_point() or t.is_complex())
        return (is_integer and t.numel() <= MAX_CONSTANT_NUMEL) or super().may_turn_const(t) or _computes_positions()


class Fakes:
    """A FakeTensorMode with a cache; with `values`, integers that the model itself creates keep their values."""

    def __init__(self, values: bool = False) -> None:
        self.mode = ConstantsMode(allow_non_fake_inputs=False)
        self.values = values
        self.labels = codec.Labels()
        self._cache: dict[Any, Metadata] = {}

    def __call__(self, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation on fake tensors."""
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if (of_speech := speech.answer(func)) is not None:
            with self.mode:
                return of_speech(*args, **kwargs)
        if _is_view(func) and isinstance(args[0], FakeTensor) and args[0].constant is None:
            with in_kernel_invocation_manager(self.mode):
                view = func(*args, **kwargs)
            return FakeTensor(self.mode, view, CPU)
        if self.values and func in FACTORIES:
            constant = self._create_constant(func, args, kwargs)
            if constant is not None:
                return constant
        if self.values and func is torch.ops.aten.ne.Scalar and _looks_for_empty_images():
            return self._constant(torch.ones(args[0].shape, dtype=torch.bool))
        if self.values and (ignored := self.labels.answer(func, args)) is not None:
            return self._constant(ignored)
        if func in MASKS and (speech.selects_frames(func) or (self.values and _counts_features())):
            selected = self._by_constant_mask(func, args)
            if selected is not None:
                return selected
        if not _is_plain(func):
            return self.mode.dispatch(func, types, args, kwargs)
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype is not torch.bfloat16:
            return self._grouped(func, args, kwargs)
        try:
            key = (func, _key(args), tuple([(name, _key(value)) for name, value in kwargs.items()]))
            metadata = self._cache.get(key)
        except TypeError:
            return self.mode.dispatch(func, types, args, kwargs)
        if metadata is not None:
            shape, stride, dtype = metadata
            with in_kernel_invocation_manager(self.mode):
                empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            return FakeTensor(self.mode, empty, CPU)
        out = self.mode.dispatch(func, types, args, kwargs)
        if isinstance(out, FakeTensor) and out.constant is None and out.storage_offset() == 0:
            is_dense = out.untyped_storage().nbytes() == out.numel() * out.element_size()
            if is_dense and out.fake_device == CPU and not _shares(out, args):
                self._cache[key] = (tuple(out.shape), out.stride(), out.dtype)
        return out

    def _grouped(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor:
        """A grouped matrix product in another dtype than bf16, which the kernels support and FakeTensorMode refuses.

        (torch 2.13, GroupedMMUtils.h: "Expected mat_a to be Float32, BFloat16 or Float16 matrix".)
        """
        stand_ins = [
            torch.empty_strided(x.shape, x.stride(), dtype=torch.bfloat16 if i < 2 else x.dtype, device="meta")
            for i, x in enumerate(args[:3])
        ]
        with in_kernel_invocation_manager(self.mode), no_dispatch():
            like = func(*stand_ins, *args[3:], **kwargs)
            empty = torch.empty_strided(like.shape, like.stride(), dtype=args[0].dtype, device="meta")
        return FakeTensor(self.mode, empty, CPU)

    def _create_constant(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """The result of a factory with its values; None unless it is a small integer tensor."""
        with in_kernel_invocation_manager(self.mode):
            shape = func(*args, **{**kwargs, "device": "meta"})
        if shape.is_floating_point() or shape.numel() > MAX_CONSTANT_NUMEL:
            return None
        with no_dispatch():
            like = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype) if _is_fake(a) else a for a in args]
            real = func(*like, **{**kwargs, "device": CPU})
        return self._constant(real)

    def _by_constant_mask(self, func: Any, args: Any) -> torch.Tensor | None:
        """A mask with values expanded, or the elements that it selects; None if the mask has no values."""
        expands = func is torch.ops.aten.expand.default
        mask = args[0] if expands else args[1][0]
        if not _is_fake(mask) or mask.constant is None or mask.dtype is not torch.bool:
            return None
        known = None if expands else args[0].constant if _is_fake(args[0]) else None
        with no_dispatch():
            real = mask.constant.expand(args[1]) if expands else mask.constant.sum()
            chosen = None if known is None else known[mask.constant]
        if expands or chosen is not None:
            return self._constant(real if chosen is None else chosen)
        shape = (int(real), *args[0].shape[mask.dim() :])
        with in_kernel_invocation_manager(self.mode):
            picked = torch.empty(shape, dtype=args[0].dtype, device="meta")
        return FakeTensor(self.mode, picked, CPU)

    def _constant(self, real: torch.Tensor) -> torch.Tensor:
        """A fake tensor that keeps the values of `real`."""
        return self.mode.fake_tensor_converter.from_real_tensor(self.mode, real, make_constant=True)


def _looks_for_empty_images() -> bool:
    """Whether Idefics 3 or SmolVLM look for images that are all zero; in a trace none is."""
    return _within(("modeling_idefics3.py", "modeling_smolvlm.py")) == "get_image_features"


def _computes_positions() -> bool:
    """Whether integers pass through floats: Gemma 4's pooled image positions, Qwen's and GLM's, Mimi's lengths."""
    return (
        _within(("modeling_gemma4.py",)) == "_avg_pool_by_positions"
        or _within(FRAME_POSITION_FILES) == "get_vision_position_ids"
        or _within(("modeling_qwen3_omni_moe.py",)) in ROPE_FUNCTIONS
        or _within(("modeling_mimi.py",)) == "_get_output_length"
    )


def _counts_features() -> bool:
    """Whether Gemma 4 or MiniCPM-V select all elements of images to count them, or models of sound their frames."""
    if _within(("modeling_minicpmv4_6.py", "modeling_minicpmv4_7.py")) == "get_placeholder_mask":
        return True
    files = ("modeling_gemma4.py", "modeling_qwen2_audio.py", *codec.FILES)
    return _within(files) in ("forward", "_merge_input_ids_with_input_values")


def _within(files: tuple[str, ...]) -> str:
    """Name of the innermost running function of these files; "" for none."""
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
    """Inside, ``torch.tensor([a, b])`` accepts fake scalars, whose memory PyTorch would read."""
    original = torch.tensor

    def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, (list, tuple)) and any(_is_fake(value) for value in data):
            data = [value.item() if _is_fake(value) else value for value in data]
        return original(data, *args, **kwargs)

    torch.tensor = tensor
    try:
        yield
    finally:
        torch.tensor = original
