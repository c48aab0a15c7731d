"""Buffers that kernels allocate beside their results."""

BUFFER_NAMES = {
    "sum": "partial sums of a gradient",
    "embedding": "partial sums of the embedding's gradient",
    "flash splits": "flash results of parts of the keys",
    "flash split sums": "flash log-sum-exp of parts of the keys",
    "efficient backward": "efficient backward accumulators",
}
"""What the buffers of kernels are called."""
