"""verl's fused heads: log-probabilities and entropies by hidden states, without whole logits (``use_fused_kernels``).

torch: 512 tokens at a time, whose logits backward computes anew (verl 0.9.1, utils/experimental/torch_functional.py:
FusedLinearForPPOFunction). triton: no logits but a part of their gradient (utils/kernel/kernels.py:
efficient_entropy_forward, efficient_entropy_backward).
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.units import ceil_div

TOKENS = 512
"""Tokens of a chunk of the torch backend (chunk_size)."""
SPLIT, GRADIENT_SPLIT = 1024, 9504
"""Entries of the vocabulary in a part of Triton's forward, and of its backward."""


def fused_log_probs(hidden: Tensor, weight: Tensor, labels: Tensor, kind: str, entropy: bool) -> tuple[Tensor, Tensor]:
    """(N,) log-probabilities of the labels and entropies by (B, S, H) hidden states; `entropy`: both have gradients."""
    tape, (batch, length, width) = hidden.tape, hidden.shape
    tokens, vocabulary = batch * length, weight.shape[0]
    node = tape.node((hidden, weight), _Backward(hidden, weight, kind, entropy))
    dtype = "fp32" if kind == "triton" else hidden.dtype
    log_probs = ops.output(node, tape, (tokens,), "fp32", "log-probabilities per token")
    entropies = Tensor(tape, tape.allocate((tokens,), dtype, "entropies per token", ""), (tokens,), dtype, node)
    tape.product(2 * tokens * vocabulary * width, weight.num_bytes, hidden.dtype, tokens * vocabulary)
    if kind == "triton":
        statistics = [tape.empty((size,), "fp32", "sums per token") for size in (tokens, 2 * tokens)]
        parts = [tape.empty((tokens, ceil_div(vocabulary, SPLIT)), "fp32", "parts of sums") for _ in range(3)]
        tape.save(node, hidden, weight, labels, *statistics)
        del parts, statistics
        return log_probs, entropies
    logits = _logits(tape, (min(tokens, TOKENS), vocabulary), hidden.dtype)
    probabilities = _like(logits, "probabilities")
    _drop_one(logits, "exponentials")
    _drop_one(logits, "probabilities times logits")
    del probabilities, logits
    tape.save(node, hidden, weight, labels)
    return log_probs, entropies


class _Backward:
    """The gradients of the hidden states and of the head's weight."""

    def __init__(self, hidden: Tensor, weight: Tensor, kind: str, entropy: bool) -> None:
        self.tape, self.kind, self.entropy = hidden.tape, kind, entropy
        self.likes = hidden.like, weight.like
        self.needs = hidden.node is not None, weight.node is not None

    def __call__(self, grad: Tensor) -> Grads:
        return self._by_triton() if self.kind == "triton" else self._by_chunks()

    def _made(self) -> list[Tensor | None]:
        names = "gradient of the input", "gradient"
        return [
            self.tape.empty(like.shape, like.dtype, name) if need else None
            for like, name, need in zip(self.likes, names, self.needs, strict=True)
        ]

    def _by_chunks(self) -> Grads:
        tape, (hidden, weight) = self.tape, self.likes
        (batch, length, width), vocabulary = hidden.shape, weight.shape[0]
        found, before = self._made(), list[Tensor]()
        chunks = ceil_div(batch * length, TOKENS)
        for _ in range(min(chunks, 2)):  # the products of one chunk live until those of the next are there
            rows = min(batch * length, TOKENS)
            gradient = self._of_logits(rows, vocabulary, hidden.dtype)
            products = [
                tape.empty((rows, width), hidden.dtype, "gradient of a chunk's input"),
                tape.empty((vocabulary, width), hidden.dtype, "gradient of the weight by a chunk"),
            ]
            before = products
            del gradient, products
        tape.product(6 * batch * length * vocabulary * width, 3 * chunks * vocabulary * width, hidden.dtype, vocabulary)
        del before
        return [*found]

    def _of_logits(self, rows: int, vocabulary: int, dtype: str) -> list[Tensor]:
        """The gradient of a chunk's logits, and what lives beside it until the chunk is over."""
        tape, shape = self.tape, (rows, vocabulary)
        logits = _logits(tape, shape, dtype)
        beside = [logits, _like(logits, "probabilities"), _like(logits, "labels of one")]
        difference = _like(logits, "labels less probabilities")
        product = _like(logits, "gradient of logits by log-probabilities")
        del difference
        gradient = _like(logits, "gradient of logits")
        del product
        if self.entropy:
            beside.append(_like(logits, "log-probabilities"))
            _drop_one(logits, "exponentials")
            _drop_one(logits, "probabilities times logits")
            term = _like(logits, "log-probabilities and entropies")
            second = _like(logits, "gradient of entropies")
            del term
            third = _like(logits, "gradient of logits by entropies")
            del second, third
        cast = tape.empty(shape, dtype, "gradient of logits, cast", "logits")
        scaled = tape.empty(shape, dtype, "gradient of logits, divided by the temperature", "logits")
        del gradient, cast
        return [scaled, *beside]

    def _by_triton(self) -> Grads:
        tape, (hidden, weight) = self.tape, self.likes
        (batch, length, width), vocabulary = hidden.shape, weight.shape[0]
        tokens = batch * length
        kept = [tape.empty(like.shape, hidden.dtype, "gradient") for like in self.likes]  # of a frozen head too
        part = tape.empty((tokens, min(vocabulary, GRADIENT_SPLIT)), hidden.dtype, "part of the logits' gradient")
        rest = vocabulary % GRADIENT_SPLIT or GRADIENT_SPLIT
        last = tape.empty((tokens, rest), hidden.dtype, "last part of the logits' gradient") if rest else None
        del part
        product = tape.empty((tokens, width), hidden.dtype, "gradient of the input by a part")
        tape.product(6 * tokens * vocabulary * width, 3 * vocabulary * width, hidden.dtype, vocabulary)
        del product, last
        return [one if need else None for one, need in zip(kept, self.needs, strict=True)]


def _logits(tape: Tape, shape: tuple[int, int], dtype: str) -> Tensor:
    """Logits of a chunk in fp32: a product, divided by the temperature, and cast."""
    product = tape.empty(shape, dtype, "logits", "logits")
    divided = tape.empty(shape, dtype, "logits divided by the temperature", "logits")
    del product
    found = tape.empty(shape, "fp32", "logits in fp32", "logits")
    del divided
    return found


def _like(x: Tensor, what: str) -> Tensor:
    return ops.new_like(x.tape, x.like, what)


def _drop_one(x: Tensor, what: str) -> None:
    """A temporary that is freed at once."""
    _like(x, what)
