"""Cached gradients (GradCache): a large batch in small forwards (sentence-transformers 6.2, base/losses/gradcache.py).

All texts run without a graph, the loss gives each vector's gradient, and a hook runs every mini-batch again with one.
Mini-batches of one column are alike: the first two are simulated, and the last if it is smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Node, Tensor
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config

Texts = dict[str, Tensor]
SIMULATED = 2
"""The first mini-batch makes gradients, the second adds to them."""
REPLAYS = 1 << 12
"""Number of the first forward within backward; each has two: for its layers, and for their backward."""


def run(vectors: Callable[..., Tensor], make: Any, c: Config, job: Job, texts: list[Texts]) -> Tensor:
    """CachedMultipleNegativesRankingLoss; `vectors` is one forward of the model."""
    tape, samples = texts[0]["input_ids"].tape, texts[0]["input_ids"].shape[0]
    parts = mini_batches(samples, job.mini_batch_size)
    reps: list[Tensor] = []
    for column, one in enumerate(texts):
        for number, (size, times) in enumerate(parts):
            tape.run_times[column * len(parts) + number] = times
            held: list[Tensor] = []
            with tape.no_grad():
                made = vectors(make, c, job, part_of(one, size), column * len(parts) + number, held)
            held.clear()
            reps.append(made)
            if times > 1:  # the vectors of those that are not simulated
                reps.append(tape.empty(((times - 1) * size, made.shape[1]), made.dtype, "vectors of other texts"))
            del made
    tape.run = 0
    tape.enter(tape.phase, None)
    tape.module = "loss"
    cache = [tape.empty(one.shape, one.dtype, "gradient of the vectors") for one in reps if tape.grad_enabled]
    loss = chunk_loss(reps, job.mini_batch_size, samples)
    if not tape.grad_enabled:
        return loss

    def hook(grad: Tensor) -> Grads:
        phase_run = tape.run
        for column, one in enumerate(texts):
            for number, (size, times) in enumerate(parts):
                place = REPLAYS + 2 * (column * len(parts) + number)
                tape.run_times |= {place: times, place + 1: times}
                tape.replay(lambda one=one, size=size, place=place: surrogate(one, size, place))  # type: ignore[misc]
        tape.run = phase_run
        tape.enter(tape.phase, None)
        return []

    def surrogate(one: Texts, size: int, place: int) -> Tensor:
        held: list[Tensor] = []
        made = vectors(make, c, job, part_of(one, size), place, held)
        tape.module = "loss"
        return dot(made)

    node = Node(tape, (), hook)
    node.saved += [*(one.storage for one in reps), *(one.storage for one in cache)]
    del reps
    return Tensor(tape, loss.storage, (), "fp32", node)


def dot(vectors: Tensor) -> Tensor:
    """``torch.dot(vectors.flatten(), gradient.flatten())``: its gradient is a product with the kept one."""
    tape, like = vectors.tape, vectors.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the vectors")]

    return ops.output(tape.node((vectors,), backward), tape, (), "fp32", "loss of the vectors")


def mini_batches(samples: int, size: int) -> list[tuple[int, int]]:
    """Texts of each mini-batch that is simulated, and how many it stands for."""
    whole, rest = divmod(samples, size)
    parts = [(size, 1)] * min(whole, SIMULATED - 1)
    if whole >= SIMULATED:
        parts.append((size, whole - SIMULATED + 1))
    return [*parts, (rest, 1)] if rest else parts


def part_of(texts: Texts, size: int) -> Texts:
    """``value[begin:end]`` of each input."""
    return {name: Tensor(one.tape, one.storage, (size, *one.shape[1:]), one.dtype) for name, one in texts.items()}


def chunk_loss(reps: list[Tensor], size: int, samples: int) -> Tensor:
    """The loss of one mini-batch of anchors with all other texts, and its backward, at once.

    (losses/cached_multiple_negatives_ranking.py: calculate_loss.) Each mini-batch normalises all other texts anew; the
    loss of each width of MatryoshkaLoss comes after the other, of narrower vectors.
    """
    tape, width = reps[0].tape, reps[0].shape[1]
    texts = sum(one.shape[0] for one in reps) - samples
    anchors = tape.empty((samples, width), "fp32", "all anchors")
    columns = tape.empty((texts, width), "fp32", "other texts of each column") if texts > samples else None
    others = tape.empty((texts, width), "fp32", "all other texts")
    rows = min(size, samples)
    similar = [tape.empty((rows, texts), "fp32", "similarities") for _ in range(5)]
    normal = tape.empty((texts, width), "fp32", "other texts, normalised")
    whole = ("of the normalised texts", "of the texts by the quotient", "of the norms", "of the texts by the norms")
    gradients = [tape.empty((texts, width), "fp32", f"gradient {name}") for name in whole if tape.grad_enabled]
    flops = 3 * 2 * rows * texts * width
    tape.product(-(-samples // rows) * flops, similar[0].num_bytes, "fp32", rows * texts)
    del columns, normal, gradients
    return tape.empty((), "fp32", "loss")
