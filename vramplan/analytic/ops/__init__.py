"""The operations a forward is made of: what each allocates, keeps for backward, computes and moves.

One function per PyTorch op, in eager CUDA behaviour of torch 2.13. What is kept follows
tools/autograd/derivatives.yaml; casts under autocast follow aten/src/ATen/autocast_mode.h (CUDA lists). Backward
functions allocate what the derivative formulas allocate, in their order; sums to a broadcast operand's shape come when
all gradients of the node are there (engine.cpp: validate_outputs). Tensors to keep are saved before the output exists,
as the generated code does, since checkpointing stops a recomputation at the last save.

A backward closure must hold shapes only (:class:`Like`), never a tensor: it would keep memory that PyTorch does not.
"""

from __future__ import annotations

from vramplan.analytic.ops.base import fit, high, low, made, output, pointwise, promote, to
from vramplan.analytic.ops.elementwise import (
    add,
    add_in_place,
    cube,
    dropout,
    gelu,
    mean,
    mul,
    neg,
    relu,
    rsqrt,
    scale,
    scale_in_place,
    shift,
    sigmoid,
    silu,
    square,
    tanh,
)
from vramplan.analytic.ops.picking import (
    add_rows,
    cut,
    join,
    join_rows,
    pick,
    pick_rows,
    pieces,
    put_rows,
    rows,
    scatter_rows,
    split_first,
    split_rows,
    sum_middle,
    unbind,
)
from vramplan.analytic.ops.products import average, embedding, layer_norm, linear, linear_4bit, matmul, patches, product
from vramplan.analytic.ops.shape import cat, copy, heads_first, part, repeat_heads, split

__all__ = [
    "add",
    "add_in_place",
    "add_rows",
    "average",
    "cat",
    "copy",
    "cube",
    "cut",
    "dropout",
    "embedding",
    "fit",
    "gelu",
    "heads_first",
    "high",
    "join",
    "join_rows",
    "layer_norm",
    "linear",
    "linear_4bit",
    "low",
    "made",
    "matmul",
    "mean",
    "mul",
    "neg",
    "output",
    "part",
    "patches",
    "pick",
    "pick_rows",
    "pieces",
    "pointwise",
    "product",
    "promote",
    "put_rows",
    "relu",
    "repeat_heads",
    "rows",
    "rsqrt",
    "scale",
    "scale_in_place",
    "scatter_rows",
    "shift",
    "sigmoid",
    "silu",
    "split",
    "split_first",
    "split_rows",
    "square",
    "sum_middle",
    "tanh",
    "to",
    "unbind",
]
