"""What torch.compile's code for a GPU allocates, on a machine without one (torch 2.13; Inductor needs triton).

Inductor lowers a function's operations for CUDA and writes the code that allocates buffers and starts kernels; it runs
here on fake tensors, with kernels that do nothing.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

GPU = torch.device("cuda", 0)
H100: dict[str, Any] = {
    "multi_processor_count": 132,
    "major": 9,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}
"""cudaDeviceProp of the GPU that code is written for."""
WRITTEN: dict[Any, tuple[str, Any, Any]] = {}
"""The code of functions for inputs of a shape, and what they return."""


@contextmanager
def h100() -> Iterator[None]:
    """Inside, Inductor finds one H100."""
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime.hints import DeviceProperties
    from triton.backends.compiler import GPUTarget

    properties = SimpleNamespace(minor=0, total_memory=80 << 30, name="H100", **H100)
    found = DeviceProperties(type="cuda", index=0, cc=90, **H100)
    driver = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0)
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0),
        "get_device_properties": properties, "_lazy_init": None,
    }  # fmt: skip
    interface = {"get_compute_capability": (9, 0), "is_available": True, "current_device": 0}
    with ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, lambda *_, value=value: value))
        for name, value in interface.items():
            stack.enter_context(patch.object(CudaInterface, name, staticmethod(lambda *_, value=value: value)))
        for owner in (CudaInterface, CudaInterface.Worker):
            stack.enter_context(patch.object(owner, "get_device_properties", staticmethod(lambda *_: properties)))
        stack.enter_context(patch.object(torch.version, "cuda", "13.0"))
        stack.enter_context(patch.object(DeviceProperties, "create", classmethod(lambda cls, device: found)))
        stack.enter_context(patch.object(triton.runtime.driver, "_active", driver, create=True))
        stack.enter_context(patch.object(triton.runtime.driver, "_default", driver, create=True))
        yield


def compiled(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    """In place of ``torch.compile``: the function's code for a GPU, on fake tensors of the host."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, torch.Tensor) and one.requires_grad for one in pytree.tree_leaves((args, kwargs))):
            return function(*args, **kwargs)  # GRPO's, of numbers for each token, whose backward runs outside
        free = [cell.cell_contents for cell in function.__closure__ or ()]
        opened, rebuild = _opened(free)
        leaves, spec = pytree.tree_flatten((args, kwargs, opened))
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        shapes: list[Any] = []

        def flat(*inputs: torch.Tensor) -> list[torch.Tensor]:
            given = iter(inputs)
            mixed = [next(given) if isinstance(one, torch.Tensor) else one for one in leaves]
            own_args, own_kwargs, own_free = pytree.tree_unflatten(mixed, spec)
            cells = tuple(types.CellType(value) for value in rebuild(own_free))
            inner = types.FunctionType(function.__code__, function.__globals__, "f", function.__defaults__, cells)
            out, shape = pytree.tree_flatten(inner(*own_args, **own_kwargs))
            shapes[:] = [shape, [one if not isinstance(one, torch.Tensor) else ... for one in out]]
            return [one for one in out if isinstance(one, torch.Tensor)]

        key = (function.__code__, *(_described(one) for one in leaves))
        if key not in WRITTEN:
            with _disable_current_modes(), h100():
                WRITTEN[key] = (code_of(flat, tensors), *shapes)
        source, shape, outputs = WRITTEN[key]
        found = iter(_call(source, tensors))
        return pytree.tree_unflatten([next(found) if one is ... else one for one in outputs], shape)

    return run


def _described(leaf: Any) -> str:
    return f"{leaf.shape} {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)


def _opened(values: list[Any]) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
    """Values of a closure with what partial functions hold, as pytree knows it, and how to put them back."""
    functions = [one.func if isinstance(one, partial) else None for one in values]
    opened = [(one.args, dict(one.keywords)) if isinstance(one, partial) else one for one in values]

    def rebuild(own: list[Any]) -> list[Any]:
        return [
            one if made is None else partial(made, *one[0], **one[1]) for one, made in zip(own, functions, strict=True)
        ]

    return opened, rebuild


def code_of(flat: Callable[..., list[torch.Tensor]], tensors: list[torch.Tensor]) -> str:
    """Inductor's code for a function from tensors to a list of tensors."""
    from torch._inductor import config, decomposition
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    mode = FakeTensorMode()

    def inputs(device: torch.device) -> list[torch.Tensor]:
        with mode:
            return [torch.empty(x.shape, dtype=x.dtype, device=device) for x in tensors]

    table = decomposition.select_decomp_table()
    graph = make_fx(flat, decomposition_table=table, tracing_mode="fake")(*inputs(torch.device("cpu")))
    on_gpu = inputs(GPU)
    folding = config.patch(joint_graph_constant_folding=False)  # it computes small constants, which takes a GPU
    patterns = "torch._inductor.fx_passes.joint_graph.lazy_init"  # of attention, and padding that takes measurements
    with patch(patterns, lambda *_: None), folding, V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        joint_graph_passes(graph)  # on the host's tensors, whose copies into a view run without a GPU
        post_grad_passes(graph, is_inference=True)
        for node in graph.graph.nodes:
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": GPU}
        graph.recompile()
        with mode:
            FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*on_gpu)
        lowering = GraphLowering(graph, shape_env=mode.shape_env, is_inference=True)
        with V.set_graph_handler(lowering):
            lowering.run(*on_gpu)
            code, _ = lowering.codegen()
    return str(getattr(code, "value", code))


class _Nothing:
    """Kernels, streams and checks: nothing is computed."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self


def _call(source: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the code on fake tensors of the host."""

    def empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype)

    def view(x: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
        return torch.as_strided(x, size, stride, offset)

    names: dict[str, Any] = {"__name__": "inductor_code"}
    source = "\n".join(line for line in source.splitlines() if "_cuda_getCurrentRawStream" not in line)
    with _disable_current_modes(), patch("torch._inductor.async_compile.AsyncCompile", _Nothing):
        exec(source, names)
    names |= {
        "empty_strided_cuda": empty,
        "reinterpret_tensor": view,
        "extern_kernels": _Nothing(),
        "assert_size_stride": lambda *_, **__: None,
        "get_raw_stream": lambda _: 0,
        "torch": SimpleNamespace(
            **{name: getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)},
            ops=torch.ops,
            cuda=SimpleNamespace(
                _DeviceGuard=lambda _: nullcontext(), set_device=lambda _: None, synchronize=lambda: None
            ),
        ),
    }
    assert all(isinstance(x, FakeTensor) for x in tensors)
    with torch.no_grad():
        return list(names["call"]([*tensors]))
