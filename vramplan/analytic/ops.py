"""The operations a forward is made of: what each allocates, keeps for backward, computes and moves.

One function per PyTorch op, in eager CUDA behaviour of torch 2.13. What is kept follows
tools/autograd/derivatives.yaml; casts under autocast follow aten/src/ATen/autocast_mode.h (CUDA lists). Backward
functions allocate what the derivative formulas allocate, in their order; sums to a broadcast operand's shape come when
all gradients of the node are there (engine.cpp: validate_outputs). Tensors to keep are saved before the output exists,
as the generated code does, since checkpointing stops a recomputation at the last save.

A backward closure must hold shapes only (:class:`Like`), never a tensor: it would keep memory that PyTorch does not.
"""

from __future__ import annotations

from math import prod

from vramplan.analytic.tape import Grads, Like, Node, Parameter, Tape, Tensor
from vramplan.units import DTYPE_BYTES

_RANK = {"bool": 0, "int64": 0, "fp16": 1, "bf16": 1, "fp32": 2}


def promote(a: str, b: str) -> str:
    """The dtype of an elementwise op on two tensors: half with fp32 gives fp32."""
    return a if _RANK[a] >= _RANK[b] else b


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if a == b:
        return a
    length = max(len(a), len(b))
    a, b = (1,) * (length - len(a)) + a, (1,) * (length - len(b)) + b
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


def output(node: Node | None, tape: Tape, shape: tuple[int, ...], dtype: str, what: str, category: str = "") -> Tensor:
    """An op's result, in a storage of its own."""
    return Tensor(tape, tape.allocate(shape, dtype, what, category), shape, dtype, node)


def made(tape: Tape, like: Like, what: str, passes: int = 3) -> Tensor:
    """A tensor like `like`, written by one kernel that moves `passes` tensors of that size."""
    size = prod(like.shape)
    tape.work(0, passes * size * DTYPE_BYTES[like.dtype], like.dtype)
    return tape.empty(like.shape, like.dtype, what)


def fit(grad: Tensor, like: Like) -> Tensor:
    """validate_outputs: sum a gradient to its operand's shape, cast it to its operand's dtype."""
    if prod(grad.shape) != prod(like.shape):
        grad = made(grad.tape, Like(like.shape, grad.dtype), "sum of a broadcast gradient")
    if grad.dtype != like.dtype:
        grad = made(grad.tape, like, "cast of a gradient")
    return grad if grad.shape == like.shape else grad.view(*like.shape)


def pointwise(
    x: Tensor,
    what: str,
    saves_input: bool = False,
    saves_output: bool = False,
    scratch: int = 0,
) -> Tensor:
    """An elementwise op on one tensor whose backward makes one tensor, after `scratch` temporaries of its size."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        temporaries = [made(tape, like, f"temporary of the backward of {what}") for _ in range(scratch)]
        result = made(tape, like, f"gradient through {what}")
        del temporaries
        return [result]

    node = tape.node((x,), backward)
    if saves_input:
        tape.save(node, x)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = output(node, tape, x.shape, x.dtype, what)
    if saves_output:
        tape.save(node, out)
    return out


# -- casts -----------------------------------------------------------------------------------------------------------


def to(x: Tensor, dtype: str, what: str = "") -> Tensor:
    """``x.to(dtype)``: a copy, or `x` itself."""
    if x.dtype == dtype:
        return x
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "cast of a gradient", passes=2)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes + x.num_elements * DTYPE_BYTES[dtype], dtype)
    return output(node, tape, x.shape, dtype, what or f"{dtype} copy")


def low(x: Tensor) -> Tensor:
    """`x` as a matmul-like op takes it under autocast; an fp32 leaf that trains is cast once and cached."""
    tape = x.tape
    dtype = tape.autocast
    if dtype is None or x.dtype != "fp32":
        return x if dtype is None else to(x, dtype)
    if not isinstance(x, Parameter):
        return to(x, dtype)
    if not x.trains:
        return to(x, dtype, f"{dtype} copy of the weight (autocast)")
    cast = tape.autocast_cache.get(id(x))
    if cast is None:
        cast = tape.autocast_cache[id(x)] = to(x, dtype, f"{dtype} copy of the weight (autocast cache)")
    return cast


def high(x: Tensor) -> Tensor:
    """`x` as an fp32 op takes it under autocast."""
    return to(x, "fp32") if x.tape.autocast and x.dtype in ("bf16", "fp16") else x


# -- elementwise -----------------------------------------------------------------------------------------------------


def add(a: Tensor, b: Tensor, what: str = "sum") -> Tensor:
    """``a + b``. Keeps nothing; both inputs get the very same gradient tensor where shape and dtype allow."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else fit(grad, like) for like in likes]

    node = tape.node((a, b), backward)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    """``a += b``: no new storage; both get the incoming gradient."""
    tape = a.tape
    needs = [x.node is not None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        return [grad if need else None for need in needs]

    tape.work(0, 3 * a.num_bytes, a.dtype)
    return Tensor(tape, a.storage, a.shape, a.dtype, tape.node((a, b), backward))


def mul(a: Tensor, b: Tensor, what: str = "product") -> Tensor:
    """``a * b``. Keeps each operand whose partner needs a gradient."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        full = [None if like is None else made(tape, grad.like, "gradient of a product") for like in likes]
        tape.applied()
        for index, like in enumerate(likes):
            if like is not None and (one := full[index]) is not None:
                full[index] = fit(one, like)
                del one
        return full

    node = tape.node((a, b), backward)
    if b.node is not None:
        tape.save(node, a)
    if a.node is not None:
        tape.save(node, b)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def scale(x: Tensor, what: str = "scaled copy") -> Tensor:
    """``x * number`` (also ``/``): keeps nothing."""
    return pointwise(x, what)


def scale_in_place(x: Tensor) -> Tensor:
    """``x /= number``: no new storage in forward."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient through a scaling")]

    tape.work(0, 2 * x.num_bytes, x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def shift(x: Tensor, what: str = "shifted copy") -> Tensor:
    """``x + number``: keeps nothing, and its gradient is the incoming one."""
    tape = x.tape

    def backward(grad: Tensor) -> Grads:
        return [grad]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return output(node, tape, x.shape, x.dtype, what)


def neg(x: Tensor) -> Tensor:
    """``-x``."""
    return pointwise(x, "negated half")


def square(x: Tensor) -> Tensor:
    """``x.pow(2)`` (fp32 under autocast). Its derivative, grad * (2 * x.pow(1)), has two temporaries."""
    return pointwise(high(x), "square", saves_input=True, scratch=2)


def cube(x: Tensor) -> Tensor:
    """``x.pow(3)`` (fp32 under autocast)."""
    return pointwise(high(x), "cube", saves_input=True, scratch=2)


def rsqrt(x: Tensor) -> Tensor:
    """``torch.rsqrt(x)`` (fp32 under autocast); -0.5 * grad * result.pow(3) has two temporaries."""
    return pointwise(high(x), "reciprocal root", saves_output=True, scratch=2)


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh(x)``."""
    return pointwise(x, "tanh", saves_output=True)


def sigmoid(x: Tensor) -> Tensor:
    """``torch.sigmoid(x)``."""
    return pointwise(x, "sigmoid", saves_output=True)


def silu(x: Tensor) -> Tensor:
    """``F.silu(x)``."""
    return pointwise(x, "silu output", saves_input=True)


def gelu(x: Tensor) -> Tensor:
    """``F.gelu(x)``, exact or tanh: one kernel."""
    return pointwise(x, "gelu output", saves_input=True)


def relu(x: Tensor) -> Tensor:
    """``F.relu(x)``: keeps its output."""
    return pointwise(x, "relu output", saves_output=True)


def mean(x: Tensor) -> Tensor:
    """``x.mean(-1, keepdim=True)``; its gradient is expanded, then divided into a full tensor."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient through mean", passes=1)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, (*x.shape[:-1], 1), x.dtype, "mean")


def dropout(x: Tensor, probability: float) -> Tensor:
    """``F.dropout`` in training: CUDA's fused op keeps a mask of one byte per element."""
    tape, like = x.tape, x.like
    if probability == 0.0 or not tape.training:
        return x

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient through dropout")]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes + x.num_elements, x.dtype)
    out = output(node, tape, x.shape, x.dtype, "dropout output")
    tape.save(node, tape.empty(x.shape, "bool", "dropout mask"))
    return out


# -- shape -----------------------------------------------------------------------------------------------------------


def copy(x: Tensor, what: str = "contiguous copy") -> Tensor:
    """``x.contiguous()`` of a tensor that is not; the gradient passes through as a view."""
    return shift(x, what)


def heads_first(x: Tensor) -> Tensor:
    """``x.transpose(1, 2)``: a view. Where the gradient comes heads first too, the reshape behind it copies it back."""
    tape, like = x.tape, x.like
    if x.node is None or like.shape[2] == 1:  # one head: either order is the same
        return x

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient with heads last", passes=2)]

    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def part(x: Tensor, size: int) -> Tensor:
    """``x[..., i : i + size]``: a view; its gradient is a zeroed full tensor (slice_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient of a slice", passes=2)]

    return Tensor(tape, x.storage, (*x.shape[:-1], size), x.dtype, tape.node((x,), backward))


def split(x: Tensor, *sizes: int) -> list[Tensor]:
    """``x.split(sizes, dim=-1)``: views; the gradient concatenates theirs (split_with_sizes_backward)."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        return [made(tape, like, "joined gradient of a split", passes=2)]

    node = tape.node((x,), backward, num_grads=len(sizes))
    return [Tensor(tape, x.storage, (*x.shape[:-1], size), x.dtype, node, i) for i, size in enumerate(sizes)]


def add_rows(x: Tensor, more: Tensor) -> Tensor:
    """``x = x.clone(); x[mask] = x[mask] + more``: rows picked out, added to, put back."""
    x = copy(x, "copy to add image features to")
    picked = pick_some(x, more.shape)
    return put_rows(x, add(picked, more, "features added"))


def pick_some(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[mask]``: a copy; its gradient is a zeroed full tensor (index_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient of an index", passes=2)]

    node = tape.node((x,), backward)
    return output(node, tape, shape, x.dtype, "rows of images")


def put_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x[mask] = rows``: in place; the gradient outside of them, and theirs."""
    tape = x.tape
    likes = [one.like if one.node is not None else None for one in (x, rows)]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else made(tape, like, "gradient of an index", passes=2) for like in likes]

    tape.work(0, 2 * rows.num_bytes, x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x, rows), backward))


def sum_middle(x: Tensor) -> Tensor:
    """``x.sum(1)`` of (N, M, ...); the gradient is expanded."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [Tensor(tape, grad.storage, like.shape, like.dtype, base=grad)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, (x.shape[0], *x.shape[2:]), x.dtype, "weighted positions")


def unbind(x: Tensor) -> list[Tensor]:
    """``x.permute(1, 0, ...).unbind(0)``: views of (N, 3, ...); their gradients are stacked, then put in order."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        stacked = made(tape, like, "stacked gradient", passes=2)
        ordered = made(tape, like, "gradient in order", passes=2)
        del stacked
        return [ordered]

    count, shape = x.shape[1], (x.shape[0], *x.shape[2:])
    node = tape.node((x,), backward, num_grads=count)
    return [Tensor(tape, x.storage, shape, x.dtype, node, index) for index in range(count)]


def pieces(x: Tensor) -> Tensor:
    """``torch.split(x, sizes)``, all pieces together: views; their gradients are joined."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "joined gradient of a split", passes=2)]

    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def split_rows(x: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    """``torch.split(x, lengths, dim=1)`` of (1, S, ...): views; the gradient joins theirs."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        return [made(tape, like, "joined gradient of a split", passes=2)]

    node = tape.node((x,), backward, num_grads=len(lengths))
    shapes = [(1, length, *x.shape[2:]) for length in lengths]
    return [Tensor(tape, x.storage, shape, x.dtype, node, index) for index, shape in enumerate(shapes)]


def join_rows(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat(parts, dim=1)``; the gradients are views of the incoming one."""
    tape, likes = parts[0].tape, [part.like for part in parts]

    def backward(grad: Tensor) -> Grads:
        return [grad.view(*like.shape) for like in likes]

    node = tape.node(tuple(parts), backward)
    out = output(node, tape, shape, parts[0].dtype, "joined pieces")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def split_first(x: Tensor, lengths: tuple[int, ...]) -> list[Tensor]:
    """``torch.split(x, lengths)``: views; the gradient joins theirs."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        return [made(tape, like, "joined gradient of a split", passes=2)]

    node = tape.node((x,), backward, num_grads=len(lengths))
    return [
        Tensor(tape, x.storage, (length, *x.shape[1:]), x.dtype, node, index) for index, length in enumerate(lengths)
    ]


def join_parts(parts: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat(parts)``; the gradients are views of the incoming one."""
    return join_rows(parts, shape)


def cut(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[:, a:b]`` of an image: a view; its gradient is a zeroed full tensor. Nothing where all of it is left."""
    if prod(shape) == x.num_elements:
        return x.view(*shape)
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient of a slice", passes=2)]

    return Tensor(tape, x.storage, shape, x.dtype, tape.node((x,), backward))


def average(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``F.avg_pool2d``: keeps its input."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient through an average")]

    node = tape.node((x,), backward)
    tape.save(node, x)
    tape.work(0, x.num_bytes, x.dtype)
    return output(node, tape, shape, x.dtype, "averaged patches")


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``torch.matmul(x, weight)`` with a weight (in, out)."""
    return matmul(
        x, weight, 2 * x.num_elements * weight.shape[-1], (*x.shape[:-1], weight.shape[-1]), "projected features"
    )


def pick_rows(x: Tensor) -> Tensor:
    """``x[index]``: rows in another order; the gradient is a zeroed full tensor (index_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient of an index", passes=2)]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return output(node, tape, x.shape, x.dtype, "rows in another order")


def rows(x: Tensor, count: int) -> Tensor:
    """``x[:, i : i + count]``: a view; its gradient is a zeroed full tensor (slice_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient of a slice", passes=2)]

    return Tensor(tape, x.storage, (x.shape[0], count, *x.shape[2:]), x.dtype, tape.node((x,), backward))


def join(a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``torch.cat((a.expand(...), b), dim=1)``; the gradients are views, the one of `a` summed over the batch."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        if likes[0] is not None:
            grads[0] = made(tape, likes[0], "gradient summed over the batch")
        if likes[1] is not None:
            grads[1] = grad.view(*likes[1].shape)
        return grads

    node = tape.node((a, b), backward)
    out = output(node, tape, shape, promote(a.dtype, b.dtype), "concatenation")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def scatter_rows(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``x.masked_scatter(mask, source)``: keeps the mask (derivatives.yaml: masked_fill, masked_scatter_backward).

    CUDA counts in every element where it stands (cuda/IndexKernel.cpp: maskPrefixSum); the source's gradient is picked
    out by the positions of all its elements (masked_select, nonzero of three dimensions).
    """
    tape = x.tape
    likes = [one.like if one.node is not None else None for one in (x, source)]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        if likes[0] is not None:
            grads[0] = made(tape, likes[0], "gradient outside the images")
        if likes[1] is not None:
            count = prod(likes[1].shape)
            positions = tape.empty((count, len(grad.shape)), "int64", "positions of image features", "workspace")
            picked = made(tape, likes[1], "gradient of the image features")
            del positions
            grads[1] = picked.view(*likes[1].shape)
            del picked
        return grads

    node = tape.node((x, source), backward)
    tape.save(node, mask)
    out = output(node, tape, x.shape, x.dtype, "text with image features")
    workspace = [
        tape.empty(x.shape, "int64", "prefix sums of the image mask", "workspace"),
        tape.empty(x.shape, "bool", "image mask in full", "workspace"),
    ]
    tape.work(0, 2 * out.num_bytes + 18 * x.num_elements, x.dtype)
    del workspace
    return out


def pick(x: Tensor, size: int) -> Tensor:
    """``x[..., [i], :]``: a copy by index; its gradient is a zeroed full tensor (index_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient of an index", passes=2)]

    node = tape.node((x,), backward)
    shape = (*x.shape[:-1], size)
    tape.work(0, 2 * prod(shape) * DTYPE_BYTES[x.dtype], x.dtype)
    return output(node, tape, shape, x.dtype, "part copied out")


def cat(a: Tensor, b: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """``torch.cat((a, b), dim=-1)``; the gradients are views of the incoming one, summed where `shape` broadcasts."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        part_of = [None if like is None else grad.view(*grad.shape[:-1], like.shape[-1]) for like in likes]
        return [
            None if like is None or part is None else fit(part, like) for part, like in zip(part_of, likes, strict=True)
        ]

    node = tape.node((a, b), backward)
    shape = shape or (*a.shape[:-1], a.shape[-1] + b.shape[-1])
    out = output(node, tape, shape, promote(a.dtype, b.dtype), "concatenation")
    tape.work(0, 2 * out.num_bytes, out.dtype)
    return out


def repeat_heads(x: Tensor, groups: int, copies: bool = False) -> Tensor:
    """Transformers' ``repeat_kv``: (B, S, K, D) to (B, S, K * groups, D), a copy; backward sums the groups.

    A single head is only expanded, a view with stride 0, except where `copies` (``repeat_interleave``).
    """
    if groups == 1:
        return x
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [made(tape, like, "gradient summed over a head group", passes=1 + groups)]

    node = tape.node((x,), backward)
    batch, length, heads, dim = x.shape
    if heads == 1 and not copies:
        return Tensor(tape, x.storage, (batch, length, groups, dim), x.dtype, node)
    out = output(node, tape, (batch, length, heads * groups, dim), x.dtype, "heads repeated to all query heads")
    tape.work(0, x.num_bytes + out.num_bytes, x.dtype)
    return out


# -- matrix products -------------------------------------------------------------------------------------------------


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, what: str = "output", category: str = "", cached: bool = True
) -> Tensor:
    """``F.linear``: (..., I) by (O, I). Keeps the input if the weight trains, the weight if the input needs grad."""
    given = x  # the module's argument lives until it returns
    x, weight = low(given), low(weight) if cached else to(weight, given.tape.autocast or weight.dtype)
    bias = None if bias is None else low(bias)
    tape = x.tape
    inputs = (x, weight) if bias is None else (x, weight, bias)
    likes = [one.like if one.node is not None else None for one in inputs]
    rows, (out_features, in_features) = prod(x.shape[:-1]), weight.shape
    flops = 2 * rows * in_features * out_features
    moved = (rows * (in_features + out_features) + in_features * out_features) * DTYPE_BYTES[x.dtype]
    dtype = x.dtype
    # as the generated formulas do, by the names of their arguments: mm's mat2, self; addmm's mat1, mat2, self
    order = (1, 0) if bias is None else (0, 1, 2)

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None] * len(likes)
        for index in order:
            like = likes[index]
            if like is None:
                continue
            if index == 2:  # the bias: summed from the incoming gradient
                grads[index] = made(tape, like, "gradient", passes=1 + rows)
                continue
            tape.work(flops, moved, dtype)
            made_of = tape.empty(like.shape, dtype, "gradient of the input" if index == 0 else "gradient")
            # a product of matrices, seen in the input's three dimensions; the weight's is transposed
            grads[index] = made_of.view(*like.shape) if index == 1 or len(like.shape) > 2 else made_of
            del made_of
        return grads

    node = tape.node(inputs, backward)
    if weight.node is not None:
        tape.save(node, x)
    if x.node is not None:
        tape.save(node, weight)
    tape.work(flops, moved, dtype)
    return output(node, tape, (*x.shape[:-1], out_features), dtype, what, category)


def patches(pixels: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """A convolution whose stride is its kernel, seen as (tiles, patches, width). Keeps what ``F.linear`` keeps."""
    pixels, weight = low(pixels), low(weight)
    bias = None if bias is None else low(bias)
    tape, dtype = pixels.tape, pixels.dtype
    inputs = (pixels, weight) if bias is None else (pixels, weight, bias)
    likes = [one.like if one.node is not None else None for one in inputs]
    flops = 2 * prod(shape) * prod(weight.shape[1:])
    moved = pixels.num_bytes + weight.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None if like is None else tape.empty(like.shape, dtype, "gradient") for like in likes]
        tape.work(flops * sum(like is not None for like in likes[:2]), moved, dtype)
        return grads

    node = tape.node(inputs, backward)
    if weight.node is not None:
        tape.save(node, pixels)
    if node is not None:
        tape.save(node, weight)
    tape.work(flops, moved, dtype)
    out = output(node, tape, shape, dtype, "patches")
    return out.view(*shape)  # flattened and transposed


def matmul(a: Tensor, b: Tensor, flops: int, shape: tuple[int, ...], what: str, scaled: bool = False) -> Tensor:
    """A batched product of two activations giving `shape`; `scaled` times a number inside (baddbmm's alpha)."""
    a, b = low(a), low(b)
    tape, dtype = a.tape, a.dtype
    likes = [x.like if x.node is not None else None for x in (a, b)]
    moved = a.num_bytes + b.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [None, None]
        for index in (1, 0):  # bmm's mat2, self
            like = likes[index]
            if like is None:
                continue
            tape.work(flops, moved, dtype)
            product = tape.empty(like.shape, dtype, "gradient of a batched product")
            if scaled:
                product = made(tape, Like(like.shape, dtype), "scaled gradient of a batched product")
            grads[index] = product.view(*like.shape)  # made in three dimensions, seen in four
            del product
        return grads

    node = tape.node((a, b), backward)
    if b.node is not None:
        tape.save(node, a)
    if a.node is not None:
        tape.save(node, b)
    tape.work(flops, moved, dtype)
    return output(node, tape, shape, dtype, what)


# -- kernels ---------------------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``F.layer_norm`` (fp32 under autocast). Keeps the input and fp32 mean and reciprocal deviation per row."""
    x = high(x)
    weight, bias = (None if p is None else high(p) for p in (weight, bias))
    tape, rows = x.tape, prod(x.shape[:-1])
    inputs = tuple(t for t in (x, weight, bias) if t is not None)
    likes = [t.like if t.node is not None else None for t in inputs]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else made(tape, like, "gradient through layer norm") for like in likes]

    node = tape.node(inputs, backward)
    tape.save(node, *(t for t in (x, weight, bias) if t is not None))
    out = output(node, tape, x.shape, x.dtype, "output")
    tape.work(0, 2 * x.num_bytes, x.dtype)
    for what in ("mean", "reciprocal deviation"):
        tape.save(node, tape.empty((rows,), "fp32", what))
    return out


def embedding(ids: Tensor, weight: Tensor, what: str = "output") -> Tensor:
    """``F.embedding``: keeps the ids; the weight's gradient is dense."""
    tape, like = weight.tape, weight.like

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * grad.num_bytes, like.dtype)
        return [made(tape, like, "gradient", passes=1)]

    node = tape.node((weight,), backward)
    tape.save(node, ids)
    shape = (*ids.shape, weight.shape[1])
    tape.work(0, 2 * prod(shape) * DTYPE_BYTES[weight.dtype], weight.dtype)
    return output(node, tape, shape, weight.dtype, what)
