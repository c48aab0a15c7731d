"""Buffers that CUDA kernels allocate by themselves, of sizes that depend on the GPU or are not linear in the batch.

A buffer is named by its kernel and the numbers that its size follows from. Host code of torch 2.13 decides; it is
followed line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from vramplan.inputs.gpu import MOST_MULTIPROCESSORS, Gpu
from vramplan.units import DTYPE_BYTES, ceil_div, round_up

CHUNK = 65536
"""Elements of a tensor that a block works on (cuda/ForeachFunctors.cuh: kChunkSize)."""
ROWS_OF_A_SEGMENT, MOST_UNSORTED = 10, 3072
"""EmbeddingBackwardKernel.cu: NROWS_PER_THREAD; Embedding.cu: ids that are not sorted."""


def sum_over_rows(shape: tuple[int, ...], dtype: str, gpu: Gpu) -> int:
    """Partial sums, in fp32, of a sum over the rows of a (rows, columns) tensor (cuda/Reduce.cuh: setReduceConfig).

    Each block sums some rows of some columns; if there are too few blocks for the GPU, several share a column, and
    meet in this buffer (ReduceConfig::global_memory_size).
    """
    rows, columns = shape
    while rows * columns * DTYPE_BYTES[dtype] > 2**31 and rows > 1:  # with_32bit_indexing: one half after the other
        rows = ceil_div(rows, 2)
    vector = 4 if columns % 4 == 0 else 2 if columns % 2 == 0 else 1  # get_output_vec_size
    most_threads = 512 // vector
    width = min(_last_power(columns // vector, most_threads), 32)
    height = min(_last_power(rows, most_threads), most_threads // width)
    width = min(_last_power(columns // vector, most_threads), most_threads // height)
    if rows < min(16 * height, 256):
        return 0
    values = ceil_div(rows, height)
    grid, target = (
        ceil_div(columns // vector, width),
        multiprocessors(gpu) * (gpu.threads_per_multiprocessor // (width * height)),
    )
    if values < 256 or grid > target:
        return 0
    blocks = max(min(ceil_div(target, grid), ceil_div(values, 16)), ceil_div(values, 256))
    return 4 * columns * blocks * width * vector if blocks > 1 else 0


def _last_power(number: int, most: int) -> int:
    """The largest power of two that is not above `number`, or `most`."""
    return 1 << (number.bit_length() - 1) if 0 < number < most else most if number else 1


def embedding_gradient(shape: tuple[int, ...], dtype: str, gpu: Gpu) -> int:
    """Partial sums, in fp32, of an embedding's gradient (cuda/EmbeddingBackwardKernel.cu: grad_weight_per_segment).

    `shape`: ids, rows of the table, width. Few ids are added one by one; for a table of few rows only numbers of the
    segments are kept.
    """
    ids, rows, width = shape
    if ids <= MOST_UNSORTED:
        return 0
    segments = ids // ROWS_OF_A_SEGMENT + min(ids, rows)
    is_short = rows < 4 * multiprocessors(gpu) and segments > 4 * rows
    return segments * (8 if is_short else 4 * width)


def flash_splits(shape: tuple[int, ...], dtype: str, gpu: Gpu) -> int:
    """Results of parts of the keys, in fp32, if there are too few queries for the GPU (set_params_splitkv).

    `shape`: batch, heads, queries, keys, head dim. Only without dropout (transformers/cuda/flash_attn/flash_api.cpp).
    """
    batch, heads, queries, keys, dim = shape
    rows = batch * heads * queries
    splits = _num_splits(batch * heads * ceil_div(queries, 64), 2 * multiprocessors(gpu), ceil_div(keys, _keys_of(dim)))
    return 4 * splits * rows * flash_width(dim) if splits > 1 else 0


def flash_split_sums(shape: tuple[int, ...], dtype: str, gpu: Gpu) -> int:
    """The log-sum-exp of each of these parts; see :func:`flash_splits`."""
    return flash_splits(shape, dtype, gpu) // flash_width(shape[-1])


def flash_width(dim: int, widest_in_32s: int = 128) -> int:
    """The width to which flash attention rounds a head (flash_api.cpp: head_size_rounded).

    Args:
        dim: width of a head.
        widest_in_32s: up to here in steps of 32, above in steps of 64; 192 in the package flash-attn.
    """
    return round_up(dim, 32 if dim <= widest_in_32s else 64)


def may_split(heads: int, queries: int) -> bool:
    """Whether some GPU may split the keys at some batch."""
    return heads * ceil_div(queries, 64) < 0.8 * 2 * MOST_MULTIPROCESSORS


def _keys_of(dim: int) -> int:
    """Keys of a block: block_n."""
    return 256 if dim <= 64 else 128 if dim <= 128 else 64


def _num_splits(blocks: int, places: int, key_blocks: int) -> int:
    """num_splits_heuristic: the fewest splits that reach 85 % of the best occupancy."""
    if blocks >= 0.8 * places:
        return 1
    most = min(128, places, key_blocks)
    eligible = [n for n in range(1, most + 1) if n == 1 or ceil_div(key_blocks, n) != ceil_div(key_blocks, n - 1)]
    occupancy = {n: (waves := blocks * n / places) / ceil(waves) for n in eligible}
    best = max(occupancy.values(), default=0.0)
    return next((n for n in eligible if occupancy[n] >= 0.85 * best), 1)


def efficient_backward(shape: tuple[int, ...], dtype: str, gpu: Gpu) -> int:
    """Accumulators, in fp32, of PyTorch's memory-efficient kernel (kernel_backward.h: workspace_size).

    dq is kept in tiles; dk and dv too if a head is too wide for the registers, once for each split of the keys
    (attention_backward.cu). Which kernel runs is decided by the head dim and by the shared memory that the GPU has
    (kernels/cutlassB.h). `shape`: batch, heads, queries, keys, head dim, head dim of the values.
    """
    batch, heads, queries, keys, dim, dim_values = shape
    height, width, accumulates = _tile(max(dim, dim_values), dtype, gpu.capability)
    elements = ceil_div(queries, height) * ceil_div(dim, width) * (height * width + 4)
    if accumulates:
        splits = max(1, min(ceil_div(keys, 64), 200 // (batch * heads)))
        elements += splits * 64 * (round_up(dim, height) + round_up(dim_values, height))
    return 4 * batch * heads * elements


def _tile(dim: int, dtype: str, capability: tuple[int, int]) -> tuple[int, int, bool]:
    """Rows and columns of a tile of dq, and whether dk and dv are accumulated in memory."""
    if dim <= 64:
        return 64, 64, False
    roomy = capability in ((8, 0), (8, 7)) or capability[0] in (9, 10)  # 163 KiB of shared memory or more
    if dtype == "fp32":
        return (128 if roomy else 64), 64, False
    if dim > 128:
        return 128, 64, True
    if roomy:
        return 128, 128, False
    if capability < (8, 0) or (dim <= 96 and capability in ((8, 6), (8, 9))):  # a kernel of its own for 86 and 89
        return 128, 64, False
    return 64, 64, True


def norm_parts(count: int, largest: int) -> int:
    """Partial sums of the norms of tensors, in fp32, as many for each as the largest has (cuda/ForeachReduceOp.cu).

    Args:
        count: number of tensors.
        largest: elements of the largest.
    """
    return 4 * count * ceil_div(largest, CHUNK)


def multiprocessors(gpu: Gpu) -> int:
    """Number of multiprocessors, or more if it is not known."""
    return gpu.multiprocessors or MOST_MULTIPROCESSORS


BUFFERS: dict[str, Callable[[tuple[int, ...], str, Gpu], int]] = {
    "sum": sum_over_rows,
    "embedding": embedding_gradient,
    "flash splits": flash_splits,
    "flash split sums": flash_split_sums,
    "efficient backward": efficient_backward,
}
"""Bytes of a buffer by its kernel: (numbers, dtype of the input, GPU)."""
