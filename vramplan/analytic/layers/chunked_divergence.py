"""TRL's divergence of two models by tiles of their logits, which are never held whole (trl 1.16).

(kernels/chunked_divergence.py: ChunkedDivergenceFunction.) Nothing runs under autocast, so that only half-precision
weights have casts: of the tiles of gradients, whose accumulators are fp32.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.layers.chunked_head import TILE, pieces
from vramplan.units import DTYPE_BYTES, ceil_div

MODELS = ("student", "teacher")
VECTORS = 9
"""Sums of a token over the vocabulary, of both models."""


def chunked_divergence(
    student: Tensor, weight: Tensor, bias: Tensor | None, teacher: Tensor, teacher_weight: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """(N,) divergences, and the student's entropies, by (N, H) hidden states and (V, H) weights of both models."""
    tape, tokens, vocabulary = student.tape, student.shape[0], weight.shape[0]
    trained = (student, weight) if bias is None else (student, weight, bias)
    likes = [x.like for x in trained]
    needs = [x.node is not None for x in trained]
    dtype, rows = student.dtype, min(tokens, TILE[0])
    widths = student.shape[-1] + teacher.shape[-1]
    flops, moved = 2 * tokens * vocabulary * widths, vocabulary * widths * DTYPE_BYTES[dtype]
    passes = ceil_div(tokens, TILE[0])

    def tiles() -> list[Tensor]:
        return [tape.empty((rows, TILE[1]), "fp32", f"tile of the {name}'s logits", "logits") for name in MODELS]

    def backward(grad: Tensor) -> Grads:
        wide = [
            tape.empty(like.shape, "fp32", "gradient of the head's input or weight in fp32") if need else None
            for like, need in zip(likes, needs, strict=True)
        ]
        held, cast = tiles(), None
        for counted in pieces(tokens, TILE[0]) if dtype != "fp32" else ():
            for entries in pieces(vocabulary, TILE[1]):
                new = tape.empty((counted, entries), dtype, "tile of gradients cast")
                cast = new
                del new
        tape.product(2 * flops, 3 * passes * moved, dtype, 2 * tokens * vocabulary, launches=8)
        grads: Grads = []
        for gradient, like in zip(wide, likes, strict=True):
            grads.append(None if gradient is None else ops.fit(gradient, like))
        del held, cast, wide
        return grads

    node = tape.node(trained, backward)
    sums = [tape.empty((tokens,), "fp32", "sums per token") for _ in range(VECTORS)]
    held = tiles()
    tape.product((1 + (kind == "jsd")) * flops, passes * moved, dtype, tokens * vocabulary, launches=8)
    normalisers = [tape.empty((tokens,), "fp32", "log-sum-exp per token") for _ in MODELS]
    entropy = tape.empty((tokens,), "fp32", "entropies")
    out = ops.output(node, tape, (tokens,), "fp32", "divergences")
    tape.save(node, *trained, teacher, teacher_weight, *normalisers, out)
    del held, sums, normalisers, student, weight, bias, teacher, teacher_weight, trained
    return out, entropy
