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
from vramplan.units import DTYPE_BYTES, ceil_div

WORKSPACE = "workspace"
"""Marks memory that a kernel itself takes while it runs: real, but not a tensor of the framework."""

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


def _output(node: Node | None, tape: Tape, shape: tuple[int, ...], dtype: str, what: str, category: str = "") -> Tensor:
    return Tensor(tape, tape.allocate(shape, dtype, what, category), shape, dtype, node)


def _made(tape: Tape, like: Like, what: str, passes: int = 3) -> Tensor:
    """A tensor like `like`, written by one kernel that moves `passes` tensors of that size."""
    size = prod(like.shape)
    tape.work(0, passes * size * DTYPE_BYTES[like.dtype], like.dtype)
    return tape.empty(like.shape, like.dtype, what)


def _fit(grad: Tensor, like: Like) -> Tensor:
    """validate_outputs: sum a gradient to its operand's shape, cast it to its operand's dtype."""
    if prod(grad.shape) != prod(like.shape):
        grad = _made(grad.tape, Like(like.shape, grad.dtype), "sum of a broadcast gradient")
    if grad.dtype != like.dtype:
        grad = _made(grad.tape, like, "cast of a gradient")
    return grad if grad.shape == like.shape else grad.view(*like.shape)


def _pointwise(
    x: Tensor,
    what: str,
    saves_input: bool = False,
    saves_output: bool = False,
    scratch: int = 0,
) -> Tensor:
    """An elementwise op on one tensor whose backward makes one tensor, after `scratch` temporaries of its size."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        temporaries = [_made(tape, like, f"temporary of the backward of {what}") for _ in range(scratch)]
        result = _made(tape, like, f"gradient through {what}")
        del temporaries
        return [result]

    node = tape.node((x,), backward)
    if saves_input:
        tape.save(node, x)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = _output(node, tape, x.shape, x.dtype, what)
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
        return [_made(tape, like, "cast of a gradient", passes=2)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes + x.num_elements * DTYPE_BYTES[dtype], dtype)
    return _output(node, tape, x.shape, dtype, what or f"{dtype} copy")


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
        return [None if like is None else _fit(grad, like) for like in likes]

    node = tape.node((a, b), backward)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = _output(node, tape, shape, dtype, what)
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
        full = [None if like is None else _made(tape, grad.like, "gradient of a product") for like in likes]
        tape.applied()
        for index, like in enumerate(likes):
            if like is not None and (one := full[index]) is not None:
                full[index] = _fit(one, like)
                del one
        return full

    node = tape.node((a, b), backward)
    if b.node is not None:
        tape.save(node, a)
    if a.node is not None:
        tape.save(node, b)
    shape, dtype = _broadcast(a.shape, b.shape), promote(a.dtype, b.dtype)
    out = _output(node, tape, shape, dtype, what)
    tape.work(0, a.num_bytes + b.num_bytes + out.num_bytes, dtype)
    return out


def scale(x: Tensor, what: str = "scaled copy") -> Tensor:
    """``x * number`` (also ``/``): keeps nothing."""
    return _pointwise(x, what)


def scale_in_place(x: Tensor) -> Tensor:
    """``x /= number``: no new storage in forward."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient through a scaling")]

    tape.work(0, 2 * x.num_bytes, x.dtype)
    return Tensor(tape, x.storage, x.shape, x.dtype, tape.node((x,), backward))


def shift(x: Tensor, what: str = "shifted copy") -> Tensor:
    """``x + number``: keeps nothing, and its gradient is the incoming one."""
    tape = x.tape

    def backward(grad: Tensor) -> Grads:
        return [grad]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes, x.dtype)
    return _output(node, tape, x.shape, x.dtype, what)


def neg(x: Tensor) -> Tensor:
    """``-x``."""
    return _pointwise(x, "negated half")


def square(x: Tensor) -> Tensor:
    """``x.pow(2)`` (fp32 under autocast). Its derivative, grad * (2 * x.pow(1)), has two temporaries."""
    return _pointwise(high(x), "square", saves_input=True, scratch=2)


def cube(x: Tensor) -> Tensor:
    """``x.pow(3)`` (fp32 under autocast)."""
    return _pointwise(high(x), "cube", saves_input=True, scratch=2)


def rsqrt(x: Tensor) -> Tensor:
    """``torch.rsqrt(x)`` (fp32 under autocast); -0.5 * grad * result.pow(3) has two temporaries."""
    return _pointwise(high(x), "reciprocal root", saves_output=True, scratch=2)


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh(x)``."""
    return _pointwise(x, "tanh", saves_output=True)


def silu(x: Tensor) -> Tensor:
    """``F.silu(x)``."""
    return _pointwise(x, "silu output", saves_input=True)


def gelu(x: Tensor) -> Tensor:
    """``F.gelu(x)``, exact or tanh: one kernel."""
    return _pointwise(x, "gelu output", saves_input=True)


def relu(x: Tensor) -> Tensor:
    """``F.relu(x)``: keeps its output."""
    return _pointwise(x, "relu output", saves_output=True)


def clamp(x: Tensor) -> Tensor:
    """``x.clamp(low, high)``: keeps its input; the gradient is a masked copy, with a boolean mask on the way."""
    return _pointwise(x, "clamped copy", saves_input=True)


def mean(x: Tensor) -> Tensor:
    """``x.mean(-1, keepdim=True)``; its gradient is expanded, then divided into a full tensor."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient through mean", passes=1)]

    node = tape.node((x,), backward)
    tape.work(0, x.num_bytes, x.dtype)
    return _output(node, tape, (*x.shape[:-1], 1), x.dtype, "mean")


def dropout(x: Tensor, probability: float) -> Tensor:
    """``F.dropout`` in training: CUDA's fused op keeps a mask of one byte per element."""
    tape, like = x.tape, x.like
    if probability == 0.0 or not tape.training:
        return x

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient through dropout")]

    node = tape.node((x,), backward)
    tape.work(0, 2 * x.num_bytes + x.num_elements, x.dtype)
    out = _output(node, tape, x.shape, x.dtype, "dropout output")
    tape.save(node, tape.empty(x.shape, "bool", "dropout mask"))
    return out


# -- shape -----------------------------------------------------------------------------------------------------------


def copy(x: Tensor, what: str = "contiguous copy") -> Tensor:
    """``x.contiguous()`` of a tensor that is not; the gradient passes through as a view."""
    return shift(x, what)


def part(x: Tensor, size: int) -> Tensor:
    """``x[..., i : i + size]``: a view; its gradient is a zeroed full tensor (slice_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient of a slice", passes=2)]

    return Tensor(tape, x.storage, (*x.shape[:-1], size), x.dtype, tape.node((x,), backward))


def split(x: Tensor, *sizes: int) -> list[Tensor]:
    """``x.split(sizes, dim=-1)``: views; the gradient concatenates theirs (split_with_sizes_backward)."""
    tape, like = x.tape, x.like

    def backward(*grads: Tensor) -> Grads:
        return [_made(tape, like, "joined gradient of a split", passes=2)]

    node = tape.node((x,), backward, num_grads=len(sizes))
    return [Tensor(tape, x.storage, (*x.shape[:-1], size), x.dtype, node, i) for i, size in enumerate(sizes)]


def pick(x: Tensor, size: int) -> Tensor:
    """``x[..., [i], :]``: a copy by index; its gradient is a zeroed full tensor (index_backward)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient of an index", passes=2)]

    node = tape.node((x,), backward)
    shape = (*x.shape[:-1], size)
    tape.work(0, 2 * prod(shape) * DTYPE_BYTES[x.dtype], x.dtype)
    return _output(node, tape, shape, x.dtype, "part copied out")


def cat(a: Tensor, b: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """``torch.cat((a, b), dim=-1)``; the gradients are views of the incoming one, summed where `shape` broadcasts."""
    tape = a.tape
    likes = [x.like if x.node is not None else None for x in (a, b)]

    def backward(grad: Tensor) -> Grads:
        part_of = [None if like is None else grad.view(*grad.shape[:-1], like.shape[-1]) for like in likes]
        return [
            None if like is None or part is None else _fit(part, like)
            for part, like in zip(part_of, likes, strict=True)
        ]

    node = tape.node((a, b), backward)
    shape = shape or (*a.shape[:-1], a.shape[-1] + b.shape[-1])
    out = _output(node, tape, shape, promote(a.dtype, b.dtype), "concatenation")
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
        return [_made(tape, like, "gradient summed over a head group", passes=1 + groups)]

    node = tape.node((x,), backward)
    batch, length, heads, dim = x.shape
    if heads == 1 and not copies:
        return Tensor(tape, x.storage, (batch, length, groups, dim), x.dtype, node)
    out = _output(node, tape, (batch, length, heads * groups, dim), x.dtype, "heads repeated to all query heads")
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

    def backward(grad: Tensor) -> Grads:
        grads: Grads = []
        for index, like in enumerate(likes):
            if like is None:
                grads.append(None)
            elif index == 2:  # the bias: summed from the incoming gradient
                grads.append(_made(tape, like, "gradient", passes=1 + rows))
            else:
                tape.work(flops, moved, dtype)
                grads.append(tape.empty(like.shape, dtype, "gradient of the input" if index == 0 else "gradient"))
        return grads

    node = tape.node(inputs, backward)
    if weight.node is not None:
        tape.save(node, x)
    if x.node is not None:
        tape.save(node, weight)
    tape.work(flops, moved, dtype)
    return _output(node, tape, (*x.shape[:-1], out_features), dtype, what, category)


def matmul(a: Tensor, b: Tensor, flops: int, shape: tuple[int, ...], what: str, scaled: bool = False) -> Tensor:
    """A batched product of two activations giving `shape`; `scaled` times a number inside (baddbmm's alpha)."""
    a, b = low(a), low(b)
    tape, dtype = a.tape, a.dtype
    likes = [x.like if x.node is not None else None for x in (a, b)]
    moved = a.num_bytes + b.num_bytes + prod(shape) * DTYPE_BYTES[dtype]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = []
        for like in likes:
            if like is not None:
                tape.work(flops, moved, dtype)
            grads.append(None if like is None else tape.empty(like.shape, dtype, "gradient of a batched product"))
            if scaled and like is not None:
                grads[-1] = _made(tape, Like(like.shape, dtype), "scaled gradient of a batched product")
        return grads

    node = tape.node((a, b), backward)
    if b.node is not None:
        tape.save(node, a)
    if a.node is not None:
        tape.save(node, b)
    tape.work(flops, moved, dtype)
    return _output(node, tape, shape, dtype, what)


# -- fused kernels ---------------------------------------------------------------------------------------------------


def softmax_fp32(x: Tensor) -> Tensor:
    """``F.softmax(x, dim=-1, dtype=torch.float32)``: fp16 goes straight in, bf16 through an fp32 copy (SoftMax.cpp)."""
    tape = x.tape
    source = to(x, "fp32", "fp32 copy of the scores") if x.dtype == "bf16" else x
    like = source.like
    del x

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient through softmax")]

    node = tape.node((source,), backward)
    tape.work(0, source.num_bytes + 4 * source.num_elements, "fp32")
    out = _output(node, tape, source.shape, "fp32", "attention probabilities in fp32")
    tape.save(node, out)
    return out


def softmax(x: Tensor) -> Tensor:
    """``F.softmax(x, dim=-1)`` in the dtype of `x` (fp32 under autocast)."""
    return _pointwise(high(x), "attention probabilities", saves_output=True)


def softmax_as_it_is(x: Tensor) -> Tensor:
    """``F.softmax(x, dim=-1, dtype=x.dtype)``: a dtype given by hand overrides autocast."""
    return _pointwise(x, "attention probabilities", saves_output=True)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """``F.layer_norm`` (fp32 under autocast). Keeps the input and fp32 mean and reciprocal deviation per row."""
    x = high(x)
    weight, bias = (None if p is None else high(p) for p in (weight, bias))
    tape, rows = x.tape, prod(x.shape[:-1])
    inputs = tuple(t for t in (x, weight, bias) if t is not None)
    likes = [t.like if t.node is not None else None for t in inputs]

    def backward(grad: Tensor) -> Grads:
        return [None if like is None else _made(tape, like, "gradient through layer norm") for like in likes]

    node = tape.node(inputs, backward)
    tape.save(node, *(t for t in (x, weight, bias) if t is not None))
    out = _output(node, tape, x.shape, x.dtype, "output")
    tape.work(0, 2 * x.num_bytes, x.dtype)
    for what in ("mean", "reciprocal deviation"):
        tape.save(node, tape.empty((rows,), "fp32", what))
    return out


def embedding(ids: Tensor, weight: Tensor, what: str = "output") -> Tensor:
    """``F.embedding``: keeps the ids; the weight's gradient is dense."""
    tape, like = weight.tape, weight.like

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * grad.num_bytes, like.dtype)
        return [_made(tape, like, "gradient", passes=1)]

    node = tape.node((weight,), backward)
    tape.save(node, ids)
    shape = (*ids.shape, weight.shape[1])
    tape.work(0, 2 * prod(shape) * DTYPE_BYTES[weight.dtype], weight.dtype)
    return _output(node, tape, shape, weight.dtype, what)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``F.cross_entropy`` on (T, V) fp32 logits: log-softmax keeps its output, nll_loss that same tensor."""
    tape, like = logits.tape, logits.like

    def log_softmax_backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient of the logits (log-softmax backward)")]

    def nll_backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient of the log-probabilities (nll_loss backward)", passes=1)]

    node = tape.node((logits,), log_softmax_backward)
    tape.work(0, 2 * logits.num_bytes, logits.dtype)
    out = _output(node, tape, logits.shape, logits.dtype, "log-probabilities")
    tape.save(node, out)
    loss_node = tape.node((out,), nll_backward)
    tape.save(loss_node, out, labels, tape.empty((), "fp32", "total weight"))
    tape.work(0, logits.shape[0] * 4, "fp32")
    return _output(loss_node, tape, (), "fp32", "loss")


def flash_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """FlashAttention-2 on (B, S, heads, D): keeps q, k, v, out and the fp32 log-sum-exp (B, heads, S).

    Its backward kernel works in an fp32 accumulator of dq, a row-sum of fp32, and, with grouped heads, dk and dv for
    all query heads (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_bwd, torch 2.13).
    """
    q, k, v = low(q), low(k), low(v)
    tape = q.tape
    likes = [x.like for x in (q, k, v)]
    batch, length, heads, dim = q.shape
    grouped = k.shape[2] != heads
    flops = 2 * batch * heads * length * length * dim  # two products over the causal half
    rounded = ceil_div(length, 128) * 128

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [tape.empty(like.shape, like.dtype, "gradient through attention") for like in likes]
        workspace = [
            tape.empty((batch, heads, rounded), "fp32", "flash backward row sums", WORKSPACE),
            tape.empty((batch, rounded, heads, ceil_div(dim, 32) * 32), "fp32", "flash backward dq in fp32", WORKSPACE),
        ]
        if grouped:
            full = (batch, length, heads, dim)
            workspace += [tape.empty(full, q_dtype, "flash backward dk, dv of all heads", WORKSPACE) for _ in range(2)]
        tape.work(5 * flops // 2, 4 * sum(prod(like.shape) for like in likes) * 2, q_dtype, launches=3)
        del workspace
        return grads

    node = tape.node((q, k, v), backward)
    tape.save(node, q, k, v)
    q_dtype = q.dtype
    tape.work(flops, sum(x.num_bytes for x in (q, k, v)) + q.num_bytes, q_dtype)
    out = _output(node, tape, q.shape, q_dtype, "attention output")
    log_sum = tape.empty((batch, heads, length), "fp32", "attention log-sum-exp")
    states = [tape.empty(shape, "int64", "attention random state") for shape in ((2,), ())]
    tape.save(node, out, log_sum, *states)
    return out


def efficient_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """PyTorch's memory-efficient kernel on (B, S, heads, D), all heads equal; a boolean mask becomes an additive bias.

    The bias, (B, 1, S, S) in q's dtype with its last dimension padded to 16, is made in every call and kept
    (aten/src/ATen/native/transformers/attention.cpp: convert_boolean_attn_mask, pad_bias; cuda/attention.cu: the
    log-sum-exp is aligned to 32 rows). Backward keeps an fp32 dq accumulator and row sums.
    """
    q, k, v = low(q), low(k), low(v)
    tape = q.tape
    likes = [x.like for x in (q, k, v)]
    batch, length, heads, dim = q.shape
    q_dtype = q.dtype
    flops = (2 if mask is None else 4) * batch * heads * length * length * dim

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [tape.empty(like.shape, like.dtype, "gradient through attention") for like in likes]
        workspace = [tape.empty((batch, heads, length), "fp32", "efficient backward row sums", WORKSPACE)]
        if q_dtype != "fp32":
            workspace.append(tape.empty(likes[0].shape, "fp32", "efficient backward dq in fp32", WORKSPACE))
        tape.work(5 * flops // 2, 4 * sum(prod(like.shape) for like in likes) * 2, q_dtype, launches=3)
        del workspace
        return grads

    node = tape.node((q, k, v), backward)
    bias = None if mask is None else additive_bias(mask, q_dtype)
    tape.save(node, q, k, v)
    if bias is not None:
        tape.save(node, bias)
    tape.work(flops, sum(x.num_bytes for x in (q, k, v)) + q.num_bytes, q_dtype)
    out = _output(node, tape, q.shape, q_dtype, "attention output")
    log_sum = tape.empty((batch, heads, ceil_div(length, 32) * 32), "fp32", "attention log-sum-exp")
    tape.save(node, out, log_sum)
    return out


def additive_bias(mask: Tensor, dtype: str) -> Tensor:
    """A boolean mask as SDPA's additive bias, rows padded to a multiple of 16 elements."""
    tape = mask.tape
    tape.work(0, 3 * mask.num_elements, dtype)
    bias = tape.empty(mask.shape, dtype, "additive attention bias")
    if mask.shape[-1] % 16:
        padded = ceil_div(mask.shape[-1], 16) * 16
        bias = tape.empty((*mask.shape[:-1], padded), dtype, "padded additive attention bias")
    return bias


def causal_mask(tape: Tape, batch: int, length: int, dtype: str) -> Tensor:
    """The mask tensor transformers builds (masking_utils.py): boolean for SDPA, additive in `dtype` for eager."""
    boolean = tape.empty((batch, 1, length, length), "bool", "causal mask")
    if dtype == "bool":
        return boolean
    return tape.empty((batch, 1, length, length), dtype, "additive causal mask")


def math_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_probability: float = 0.0, broadcasts: bool = False
) -> Tensor:
    """SDPA's fallback, all scores at once (aten/src/ATen/native/transformers/attention.cpp, torch 2.13).

    Half types are computed in fp32; q and k are each scaled by the root of the scale; grouped heads are repeated;
    a causal mask without padding is one (S, S) bias for all; the fp32 probabilities are kept once for both products.
    `broadcasts`: one head meets many without ``enable_gqa`` (falcon-7b), so the products expand it themselves.
    """
    q, k, v = low(q), low(k), low(v)
    with q.tape.autocasting(None):  # autocast's SDPA wrapper excludes the autocast key: the products inside stay fp32
        return _math_attention(q, k, v, mask, dropout_probability, broadcasts)


def _math_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_probability: float, broadcasts: bool
) -> Tensor:
    dtype, tape = q.dtype, q.tape
    batch, length, heads, dim = q.shape
    groups = heads // k.shape[2]
    wide = [to(x, "fp32", "fp32 copy for math attention") for x in (q, k, v)]
    # C++ locals that live to the end: the fp32 copies, the scaled query, the bias, the repeated heads
    q = scale(wide[0], "scaled query")
    bias = additive_bias(mask, "fp32") if mask is not None else _causal_bias(tape, length)
    k, v = wide[1], wide[2]
    if not broadcasts:
        k, v = repeat_heads(k, groups, copies=True), repeat_heads(v, groups, copies=True)
    flops, shape = 2 * batch * heads * length * length * dim, (batch, heads, length, length)
    scores = matmul(q, _fold(scale(k, "scaled key"), heads), flops, shape, "attention scores")  # the mask: in place
    tape.work(0, 3 * scores.num_bytes, "fp32")
    weights = _safe_softmax(scores)
    del scores
    weights = dropout(weights, dropout_probability)
    out = matmul(weights, _fold(v, heads), flops, (batch, length, heads, dim), "attention output in fp32")
    copied = to(weights, dtype) if dtype != "fp32" else None  # the second result, dropped by the caller
    del copied
    return copy(to(out, dtype, "attention output"))


def _fold(x: Tensor, heads: int) -> Tensor:
    """A single head as ``at::matmul`` broadcasts it to all: a view for one sample, a copy for more."""
    if x.shape[2] == heads:
        return x
    x = repeat_heads(x, heads)
    return x if x.shape[0] == 1 else copy(x, "heads expanded for a batched product")


def _causal_bias(tape: Tape, length: int) -> Tensor:
    boolean = tape.empty((length, length), "bool", "causal mask")
    return additive_bias(boolean, "fp32")


def _safe_softmax(x: Tensor) -> Tensor:
    """``_safe_softmax``: a softmax, a test for rows without any key, and the result; keeps the result."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [_made(tape, like, "gradient through softmax")]

    node = tape.node((x,), backward)
    first = tape.empty(x.shape, x.dtype, "softmax output")
    masked = tape.empty(x.shape, "bool", "rows without keys")
    tape.work(0, 6 * x.num_bytes, x.dtype, launches=4)
    out = _output(node, tape, x.shape, x.dtype, "attention probabilities in fp32")
    tape.save(node, out)
    del first, masked
    return out


def bloom_gelu(x: Tensor) -> Tensor:
    """BLOOM's own GELU, an autograd function of Python ops that keeps its input alone (modeling_bloom.py)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        def made() -> Tensor:
            return _made(tape, like, "temporary of the GELU's backward")

        inner, scaled = made(), made()
        squared = made()
        del scaled
        shifted = made()
        del squared
        product = made()
        del inner, shifted
        bent = made()  # tanh, a local to the end
        del product
        half, square = made(), made()
        complement = made()
        del square
        scaled = made()
        squared = made()
        del scaled
        shifted = made()
        del squared
        product = made()
        del complement, shifted
        first = made()
        del half, product
        shifted = made()
        second = made()
        del shifted
        slope = made()
        del first, second
        return [_made(tape, like, "gradient through GELU")]

    node = tape.node((x,), backward)
    tape.save(node, x)

    def made() -> Tensor:
        return _made(tape, like, "temporary of the GELU")

    half, inner, scaled = made(), made(), made()  # x * 0.5, 0.79788456 * x, 0.044715 * x
    squared = made()
    del scaled
    shifted = made()
    del squared
    product = made()
    del inner, shifted
    bent = made()
    del product
    factor = made()
    del bent
    return _output(node, tape, x.shape, x.dtype, "gelu output")


# -- fused losses ------------------------------------------------------------------------------------------------------


def liger_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Liger's fused head and loss (liger_kernel/ops/fused_linear_cross_entropy.py, 0.8.5), all work done in forward.

    The gradients of the hidden state and, where the head trains, of its weight are made at once and kept; the logits
    exist for one chunk of tokens: next_pow2(ceil(T / ceil(V / H))).
    """
    tape = hidden.tape
    hidden = low(hidden)
    likes = [x.like for x in (hidden, weight)]
    needs = [x.node is not None for x in (hidden, weight)]
    tokens, (vocabulary, width) = prod(hidden.shape[:-1]), weight.shape
    rows = ceil_div(tokens, ceil_div(vocabulary, width))
    chunk = min(tokens, 1 << (rows - 1).bit_length())

    made: list[Tensor | None] = []

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * tokens * width * 2, hidden_dtype)
        grads = list(made)
        made.clear()
        return grads

    hidden_dtype = hidden.dtype
    node = tape.node((hidden, weight), backward)
    first = tape.empty(likes[0].shape, hidden_dtype, "gradient of the hidden state (kept by Liger)")
    second = tape.empty(likes[1].shape, likes[1].dtype, "gradient (kept by Liger)") if needs[1] else None
    per_token = [tape.empty((tokens,), dtype, "Liger loss per token") for dtype in ("fp32", "bool")]
    cast = tape.empty(weight.shape, hidden_dtype, "weight cast for Liger") if weight.dtype != hidden_dtype else None
    logits = tape.empty((chunk, vocabulary), hidden_dtype, "logits of one chunk", "logits")
    products = 3 if needs[1] else 2
    size = DTYPE_BYTES[hidden_dtype]
    moved = products * ceil_div(tokens, chunk) * (vocabulary * width + chunk * (vocabulary + width)) * size
    tape.work(2 * products * tokens * vocabulary * width, moved, hidden_dtype, launches=4 * ceil_div(tokens, chunk))
    del logits, cast, per_token
    if node is not None:
        for tensor in (first, second):
            if tensor is not None and hasattr(tensor.storage, "id"):
                tape.kept.add(tensor.storage.id)
        made.extend([first if needs[0] else None, second])
    del first, second
    return _output(node, tape, (), "fp32", "loss")


TRL_TILE = (4096, 32768)
"""Tokens by vocabulary entries of one tile of TRL's chunked loss (trl 1.16, ChunkedLogProbFunction)."""


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """TRL's chunked loss (trl 1.16): no logits are kept; backward recomputes them tile by tile in fp32 accumulators."""
    tape = hidden.tape
    hidden = low(hidden)
    dtype, tokens, (vocabulary, width) = hidden.dtype, prod(hidden.shape[:-1]), weight.shape
    hidden_like, weight_like = hidden.like, weight.like
    needs = [x.node is not None for x in (hidden, weight)]
    tile_shape = (min(tokens, TRL_TILE[0]), TRL_TILE[1])
    flops = 2 * tokens * vocabulary * width
    moved = vocabulary * width * DTYPE_BYTES[dtype] * ceil_div(tokens, TRL_TILE[0])

    def backward(grad: Tensor) -> Grads:
        wide = [
            tape.empty(like.shape, "fp32", "gradient of the head's input or weight in fp32") if need else None
            for like, need in zip((hidden_like, weight_like), needs, strict=True)
        ]
        tile = tape.empty(tile_shape, dtype, "tile of logits", "logits")
        tape.work((1 + sum(needs)) * flops, 3 * moved, dtype, launches=8)
        del tile
        grads: Grads = []
        for one, like in zip(wide, (hidden_like, weight_like), strict=True):
            grads.append(None if one is None else _fit(one, like))
        del wide
        return grads

    node = tape.node((hidden, weight), backward)
    valid = scale(hidden.detach(), "hidden states of the tokens that count")
    tape.save(node, valid, weight)
    per_token = [tape.empty((tokens,), "fp32", "loss per token") for _ in range(7)]
    tape.save(node, labels, per_token[0], per_token[1])
    tile = tape.empty(tile_shape, dtype, "tile of logits", "logits")
    tape.work(flops, moved, dtype, launches=8)
    del tile, per_token
    return _output(node, tape, (), "fp32", "loss")
