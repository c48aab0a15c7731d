"""Attention kernels: allocations, saved tensors and workspaces (aten/src/ATen/native/transformers, torch 2.13).

Tensors are (batch B, length S, heads, head dim D).
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from operator import mul
from typing import NamedTuple

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Like, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.memory.kernel_buffers import flash_width, may_split
from vramplan.memory.timeline import BLOCK_BYTES
from vramplan.step_time.kernels import ATTENTION, BACKWARD, CAUSAL_ATTENTION
from vramplan.units import DTYPE_BYTES, round_up


class Pieces(NamedTuple):
    """A row of tokens divided into pieces that do not attend to each other."""

    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest piece."""
        return _longest(self.lengths)

    @property
    def squares(self) -> int:
        """Number of attention scores of all pieces."""
        return _squares(self.lengths)

    def rounding(self, row_bytes: int, align: int = 1) -> int:
        """Bytes that a tensor for each piece takes more than one for all, whose rows are a multiple of `align`."""
        return _rounding(self.lengths, row_bytes, align)


@lru_cache(maxsize=64)
def _longest(lengths: tuple[int, ...]) -> int:
    return max(lengths)


@lru_cache(maxsize=64)
def _squares(lengths: tuple[int, ...]) -> int:
    """All layers of a vision tower ask for that of the same thousands of windows."""
    return sum(map(mul, lengths, lengths))


@lru_cache(maxsize=256)
def _rounding(lengths: tuple[int, ...], row_bytes: int, align: int) -> int:
    apart = sum(round_up(round_up(length, align) * row_bytes, BLOCK_BYTES) for length in lengths)
    return apart - round_up(round_up(sum(lengths), align) * row_bytes, BLOCK_BYTES)


WORKSPACE = "workspace"
"""Category of memory that a kernel allocates while it runs, not as a tensor."""


def blocks_of_calls(q: Tensor, pieces: Pieces | None, wide: int, align: int = 1, states: int = 2) -> list[Tensor]:
    """What outputs, log-sum-exps and random states of a call for each piece take more than those of one call for all.

    They are rounded up to blocks of 512 bytes, which counts where windows are a few patches. `align`: the rows of a
    log-sum-exp are a multiple of it.
    """
    if pieces is None or len(pieces.lengths) == 1:
        return []
    heads, more = q.shape[2], states * BLOCK_BYTES * (len(pieces.lengths) - 1)
    more += pieces.rounding(wide * heads * DTYPE_BYTES[q.dtype]) + pieces.rounding(heads * DTYPE_BYTES["fp32"], align)
    return [q.tape.empty((more,), "bool", "blocks of the calls for all pieces")] if more > 0 else []


def softmax_fp32(x: Tensor) -> Tensor:
    """``F.softmax(x, dim=-1, dtype=torch.float32)``: bf16 is copied to fp32 first, fp16 is not (SoftMax.cpp)."""
    tape = x.tape
    source = ops.to(x, "fp32", "fp32 copy of the scores") if x.dtype == "bf16" else x
    like = source.like
    del x

    def backward(grad: Tensor) -> Grads:
        return [softmax_gradient(tape, like, "fp32")]

    node = tape.node((source,), backward)
    tape.work(0, source.num_bytes + 4 * source.num_elements, "fp32")
    out = ops.output(node, tape, source.shape, "fp32", "attention probabilities in fp32")
    tape.save(node, out)
    return out


def softmax_gradient(tape: Tape, like: Like, dtype: str = "") -> Tensor:
    """The gradient through a softmax, beside ``grad * output`` in `dtype` (SoftMax.cu: softmax_backward_cuda_out)."""
    gradient = ops.new_like(tape, like, "gradient through softmax")
    product = tape.empty(like.shape, dtype or like.dtype, "gradient times probabilities", WORKSPACE)
    del product
    return gradient


def softmax(x: Tensor) -> Tensor:
    """``F.softmax(x, dim=-1)`` in the dtype of `x` (fp32 under autocast)."""
    return softmax_as_it_is(ops.high(x))


def softmax_as_it_is(x: Tensor) -> Tensor:
    """``F.softmax(x, dim=-1, dtype=x.dtype)``: an explicit dtype overrides autocast."""
    tape, like = x.tape, x.like
    node = tape.node((x,), lambda grad: [softmax_gradient(tape, like)])
    tape.work(0, 2 * x.num_bytes, x.dtype)
    out = ops.output(node, tape, x.shape, x.dtype, "attention probabilities")
    tape.save(node, out)
    return out


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pieces: Pieces | None = None,
    causal: bool = False,
    splits: bool = False,
    package: bool = False,
    heads_first: bool = False,
) -> Tensor:
    """FlashAttention-2 on (B, S, heads, D): saves q, k, v, out, the fp32 log-sum-exp (B, heads, S) and a random state.

    `splits`: the keys may be split if there are few queries, as for rows of one length without dropout. `package`: the
    package flash-attn and not PyTorch's copy, which rounds heads between 128 and 192 to another width. `heads_first`: q
    has heads before positions in memory, and so has the output, which backward copies (cuda/attention_backward.cu).

    Its backward kernel allocates an fp32 accumulator of dq, fp32 row sums, and, with grouped heads, dk and dv of all
    query heads (aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_bwd, torch 2.13).
    """
    v, k, q = ops.low(v), ops.low(k), ops.low(q)  # autocast casts the last argument first
    tape = q.tape
    likes = [x.like for x in (q, k, v)]
    batch, length, heads, dim = q.shape
    kind = CAUSAL_ATTENTION if causal else ATTENTION
    grouped = k.shape[2] != heads
    flops = 4 * batch * heads * length * k.shape[1] * dim  # two products, not halved for a causal mask
    rounded, width = round_up(length, 128), flash_width(dim, 192) if package else flash_width(dim)
    if pieces is not None:
        flops, rounded = 4 * heads * pieces.squares * dim, round_up(pieces.longest, 128)

    def backward(grad: Tensor) -> Grads:
        ordered = tape.empty(likes[0].shape, q_dtype, "output with positions first", WORKSPACE) if heads_first else None
        grads: Grads = [tape.empty(like.shape, like.dtype, "gradient through attention") for like in likes]
        workspace = [
            tape.empty((batch, heads, rounded), "fp32", "flash backward row sums", WORKSPACE),
            tape.empty((batch, rounded, heads, width), "fp32", "flash backward dq in fp32", WORKSPACE),
        ]
        if grouped:
            full = (batch, length, heads, dim)
            workspace += [tape.empty(full, q_dtype, "flash backward dk, dv of all heads", WORKSPACE) for _ in range(2)]
        moved = 4 * sum(prod(like.shape) for like in likes) * 2
        tape.work(5 * flops // 2, moved, q_dtype, 3, kind + BACKWARD)
        del workspace, ordered
        return grads

    node = tape.node((q, k, v), backward)
    q_dtype = q.dtype
    tape.work(flops, sum(x.num_bytes for x in (q, k, v)) + q.num_bytes, q_dtype, kind=kind)
    out = ops.output(node, tape, q.shape, q_dtype, "attention output")
    log_sum = tape.empty((batch, heads, length), "fp32", "attention log-sum-exp")
    accumulators = []
    if splits and pieces is None and may_split(heads, length):
        numbers = batch, heads, length, k.shape[1], dim
        accumulators = [tape.buffer(kernel, numbers, q_dtype) for kernel in ("flash split sums", "flash splits")]
    states = [tape.empty(shape, "int64", "attention random state") for shape in ((2,), ())]
    del accumulators
    states += blocks_of_calls(q, None if package else pieces, dim)  # the package takes all pieces at once
    tape.save(node, *states, out, log_sum, v, q, k)  # freed in reverse order: by name, inputs first
    return out


def cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, pieces: Pieces | None = None, causal: bool = False
) -> Tensor:
    """The kernel of cuDNN on (B, S, heads, D): saves what flash saves, and the mask as a bias (cudnn/MHA.cpp).

    Its backward allocates one block, an fp32 dq and row sums; key heads are not expanded. That is what cudnn-frontend
    asks for; what a plan of cuDNN needs beyond that is not known and taken as none.
    """
    v, k, q = ops.low(v), ops.low(k), ops.low(q)  # autocast casts the last argument first
    tape, q_dtype = q.tape, q.dtype
    likes = [x.like for x in (q, k, v)]
    batch, length, heads, dim = q.shape
    pairs, longest = batch * heads * length * k.shape[1], length
    if pieces is not None:
        pairs, longest = heads * pieces.squares, pieces.longest
    kind = CAUSAL_ATTENTION if causal and mask is None else ATTENTION
    wide = v.shape[-1]

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [tape.empty(like.shape, like.dtype, "gradient through attention") for like in likes]
        accumulator = (batch, longest, heads, dim + 1)
        workspace = tape.empty(accumulator, "fp32", "cuDNN backward dq in fp32 and row sums", WORKSPACE)
        moved = 4 * sum(prod(like.shape) for like in likes) * 2
        tape.work(2 * pairs * (3 * dim + 2 * wide), moved, q_dtype, 3, kind + BACKWARD)
        del workspace
        return grads

    node = tape.node((q, k, v), backward)
    bias = None if mask is None else additive_bias(mask, q_dtype) if mask.dtype == "bool" else ops.to(mask, q_dtype)
    states = [tape.empty((), "int64", "attention random state") for _ in range(2)]
    tape.work(2 * pairs * (dim + wide), sum(x.num_bytes for x in (q, k, v)) + q.num_bytes, q_dtype, kind=kind)
    out = ops.output(node, tape, (*q.shape[:-1], wide), q_dtype, "attention output")
    log_sum = tape.empty((batch, heads, length), "fp32", "attention log-sum-exp")
    states += blocks_of_calls(q, pieces, wide)
    tape.save(node, *states, out, log_sum, v, q, k, *([] if bias is None else [bias]))
    return out


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, pieces: Pieces | None = None, causal: bool = False
) -> Tensor:
    """PyTorch's memory-efficient kernel on (B, S, heads, D) without grouped heads; values may have another width.

    A boolean mask becomes an additive bias, (B, 1, S, S) in q's dtype with its last dimension padded to a multiple of
    8, which each call makes and saves (aten/src/ATen/native/transformers/attention.cpp: convert_boolean_attn_mask,
    pad_bias; cuda/attention.cu: the log-sum-exp is aligned to 32 rows). Heads wider than 128 have an fp32 accumulator
    of the output, unless they are fp32. Backward allocates row sums and accumulators; in fp32 row sums are made of a
    product as large as the output (cuda/attention_backward.cu).
    """
    v, k, q = ops.low(v), ops.low(k), ops.low(q)  # autocast casts the last argument first
    tape = q.tape
    likes = [x.like for x in (q, k, v)]
    batch, length, heads, dim = q.shape
    q_dtype, wide = q.dtype, v.shape[-1]
    kind = CAUSAL_ATTENTION if causal and mask is None else ATTENTION  # with a mask no score is skipped
    keys, longest = k.shape[1], length
    pairs = batch * heads * length * keys
    if pieces is not None:
        pairs, longest, keys = heads * pieces.squares, pieces.longest, pieces.longest

    def backward(grad: Tensor) -> Grads:
        grads: Grads = [tape.empty(like.shape, like.dtype, "gradient through attention") for like in likes]
        row_sums = efficient_row_sums(tape, (batch, longest, heads, wide), q_dtype)
        workspace = tape.buffer("efficient backward", (batch, heads, longest, keys, dim, wide), q_dtype)
        del row_sums
        flops = 2 * pairs * (3 * dim + 2 * wide)
        moved = 4 * sum(prod(like.shape) for like in likes) * 2
        tape.work(flops, moved, q_dtype, 3, kind + BACKWARD)
        del workspace
        return grads

    node = tape.node((q, k, v), backward)
    bias = None if mask is None else aligned_bias(mask, q_dtype)
    tape.work(2 * pairs * (dim + wide), sum(x.num_bytes for x in (q, k, v)) + q.num_bytes, q_dtype, kind=kind)
    out = ops.output(node, tape, (*q.shape[:-1], wide), q_dtype, "attention output")
    log_sum = None
    if node is not None:  # should_compute_logsumexp
        log_sum = tape.empty((batch, heads, round_up(length, 32)), "fp32", "attention log-sum-exp")
    if q_dtype != "fp32" and max(dim, wide) > 128:
        accumulator = tape.empty((batch, longest, heads, wide), "fp32", "efficient output in fp32", WORKSPACE)
        del accumulator
    if log_sum is not None:
        blocks = blocks_of_calls(q, pieces, wide, 32)
        tape.save(node, *blocks, out, log_sum, v, q, k, *([] if bias is None else [bias]))
        del log_sum, blocks  # std::get<0> of the kernel's results; the bias is a local of the calling function
    return out


def efficient_row_sums(tape: Tape, shape: tuple[int, ...], dtype: str) -> Tensor:
    """The row sums of the memory-efficient kernel's backward; in fp32 of a product as large as the output."""
    product = sums = None
    if dtype == "fp32":
        product = tape.empty(shape, "fp32", "gradient times output", WORKSPACE)
        sums = tape.empty(shape[:-1], "fp32", "efficient backward row sums", WORKSPACE)
    batch, length, heads, _ = shape
    row_sums = tape.empty((batch, heads, length), "fp32", "efficient backward row sums", WORKSPACE)
    del sums, product  # the temporaries of one expression
    return row_sums


def additive_bias(mask: Tensor, dtype: str) -> Tensor:
    """A boolean mask as SDPA's additive bias (convert_boolean_attn_mask)."""
    mask.tape.work(0, 3 * mask.num_elements, dtype)
    return mask.tape.empty(mask.shape, dtype, "additive attention bias")


def aligned_bias(mask: Tensor, dtype: str) -> Tensor:
    """The additive bias of the memory-efficient kernel, rows padded to a multiple of 8 elements (preprocess_mask)."""
    bias = additive_bias(mask, dtype) if mask.dtype == "bool" else ops.to(mask, dtype)
    if mask.shape[-1] % 8 == 0:
        return bias
    padded = round_up(mask.shape[-1], 8)
    return mask.tape.empty((*mask.shape[:-1], padded), dtype, "padded additive attention bias")


def math_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_probability: float = 0.0,
    broadcasts: bool = False,
    contiguous: bool = False,
) -> Tensor:
    """SDPA's math fallback, all scores at once (aten/src/ATen/native/transformers/attention.cpp, torch 2.13).

    Half types are computed in fp32; q and k are each scaled by the root of the scale; grouped heads are repeated;
    a causal mask without padding is one (S, S) bias; the fp32 probabilities are saved once for both products.
    `broadcasts`: one key head without ``enable_gqa`` (falcon-7b), which the products expand. `contiguous`: q and k have
    heads before positions in memory, so that the products copy neither.
    """
    v, k, q = ops.low(v), ops.low(k), ops.low(q)  # autocast casts the last argument first
    with q.tape.autocasting(None):  # autocast's SDPA wrapper disables autocast: its products stay in fp32
        return _math_attention(q, k, v, mask, dropout_probability, broadcasts, contiguous)


def _math_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_probability: float,
    broadcasts: bool,
    contiguous: bool,
) -> Tensor:
    dtype, tape = q.dtype, q.tape
    batch, length, heads, dim = q.shape
    groups = heads // k.shape[2]
    repeats = groups > 1 and not broadcasts
    # C++ locals, held until the function returns: the bias, the fp32 copies, the scaled query, the repeated heads; the
    # bias of a given mask is its caller's
    bias = mask
    if mask is not None and mask.dtype == "bool":
        bias = additive_bias(mask, dtype)
    wide = [ops.to(x, "fp32", "fp32 copy for math attention") for x in (q, k, v)]
    q = ops.scale(wide[0], "scaled query")
    if bias is None:
        bias = _causal_bias(tape, length)
    k, v = wide[1], wide[2]
    if repeats:
        k, v = ops.repeat_heads(k, groups, copies=True), ops.repeat_heads(v, groups, copies=True)
    keys = k.shape[1]
    flops, shape = 2 * batch * heads * length * keys * dim, (batch, heads, length, keys)
    scores = _scores(q, k, flops, shape, contiguous, repeats)  # the mask: in place
    tape.work(0, 3 * scores.num_bytes, "fp32")
    weights = _safe_softmax(scores)
    del scores
    weights = ops.dropout(weights, dropout_probability)
    copied = ops.to(weights, dtype) if dtype != "fp32" else None  # the second result, held until the function returns
    flops, shape = flops // dim * v.shape[-1], (batch, length, heads, v.shape[-1])
    value = _merged(_fold(v, heads), repeats or v.shape[2] != heads)
    out = ops.matmul(weights, value, flops, shape, "attention output in fp32")
    del value
    if batch > 1:
        out = ops.heads_first(out)  # the gradient comes with positions first
    out = ops.to(out, dtype, "attention output")
    del weights, v, k, q
    if mask is None:
        bias = None
    del wide, copied, bias
    return ops.copy(out)


def _scores(q: Tensor, k: Tensor, flops: int, shape: tuple[int, ...], contiguous: bool, repeats: bool) -> Tensor:
    """The product of the scaled query and the scaled key, copied if batch and heads are not one dimension."""
    k = ops.scale(k, "scaled key")
    query = _merged(q, contiguous)
    folded = _fold(k, shape[1])
    key = folded if folded is not k else _merged(k, contiguous or repeats)
    return ops.matmul(query, key, flops, shape, "attention scores")


def _merged(x: Tensor, contiguous: bool) -> Tensor:
    """`x` as input of a batched product: copied if batch and heads cannot be viewed as one dimension."""
    return x if contiguous or x.shape[0] == 1 else ops.copy(x, "heads made contiguous")


def _fold(x: Tensor, heads: int) -> Tensor:
    """A single head broadcast to all by ``at::matmul``: a view for one sample, a copy for more."""
    if x.shape[2] == heads:
        return x
    x = ops.repeat_heads(x, heads)
    return x if x.shape[0] == 1 else ops.copy(x, "heads expanded for a batched product")


def _causal_bias(tape: Tape, length: int) -> Tensor:
    ones = tape.empty((length, length), "bool", "ones, before tril")
    boolean = tape.empty((length, length), "bool", "causal mask")
    del ones
    return additive_bias(boolean, "fp32")


def _safe_softmax(x: Tensor) -> Tensor:
    """``_safe_softmax``: rows without keys are set to 0 in place; saves the result (SoftMax.cpp)."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        return [softmax_gradient(tape, like)]

    node = tape.node((x,), backward)
    out = ops.output(node, tape, x.shape, x.dtype, "attention probabilities in fp32")
    masked = tape.empty(x.shape, "bool", "rows without keys")
    tape.work(0, 6 * x.num_bytes, x.dtype, launches=4)
    tape.save(node, out)
    del masked
    return out
