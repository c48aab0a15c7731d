"""Losses of vectors (sentence-transformers 6.2, sentence_transformer/losses/)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.inputs.job import Job


def loss(anchors: Tensor, others: Tensor, scores: Tensor | None, job: Job) -> Tensor:
    """The loss, or the sum of those of all widths (MatryoshkaLoss)."""
    if job.matryoshka_dims is None:
        return of_width(anchors, others, job)
    total: Tensor | None = None
    for size in sorted(job.matryoshka_dims, reverse=True):
        anchors, others = (normalised(ops.part(one, size)) for one in (anchors, others))
        one = of_width(anchors, others, job)
        total = one if total is None else ops.add(total, one)
    assert total is not None
    return total


def of_width(anchors: Tensor, others: Tensor, job: Job) -> Tensor:
    """The job's loss of vectors of one width."""
    return FUNCTIONS.get(job.embedding_loss, multiple_negatives)(anchors, others)


def normalised(x: Tensor) -> Tensor:
    """``F.normalize(x, p=2, dim=-1)``: norm, clamp, quotient."""
    length = ops.clamp(ops.norm(x), 1)
    return ops.mul(x, length, "normalised")


def multiple_negatives(anchors: Tensor, others: Tensor) -> Tensor:
    """MultipleNegativesRankingLoss: every anchor with all other texts, in fp32."""
    tape, samples, count = anchors.tape, anchors.shape[0], others.shape[0]
    positive = ops.rows(others.view(1, *others.shape), samples).view(samples, others.shape[1])
    texts = ops.copy(others, "all other texts")  # torch.cat
    picked = ops.gathered(anchors, anchors.shape, "anchors of this GPU")
    matching = ops.gathered(positive, positive.shape, "positives of this GPU")
    left, right = (normalised(ops.to(one, "fp32")) for one in (picked, texts))
    flops = 2 * samples * count * anchors.shape[1]
    similar = ops.matmul(left, right, flops, (samples, count), "similarities")
    del left, right
    scaled = ops.scale(similar, "scaled similarities")
    own = ops.gathered(scaled, (samples,), "similarities of pairs")
    joined = ops.copy(scaled, "similarities of all directions")  # torch.cat
    highest = log_sum_exp(joined)
    return ops.total(ops.subtract(own, highest)).view()


def symmetric(anchors: Tensor, others: Tensor) -> Tensor:
    """MultipleNegativesSymmetricRankingLoss: the same from anchors to texts and from positive texts to anchors."""
    samples = anchors.shape[0]
    positive = ops.rows(others.view(1, *others.shape), samples).view(samples, others.shape[1])
    return ops.add(multiple_negatives(anchors, others), multiple_negatives(positive, anchors))


def log_sum_exp(x: Tensor) -> Tensor:
    """``torch.logsumexp(x, dim=1)``: saves `x` and the result; backward: grad * (x - result).exp()."""
    tape, like = x.tape, x.like

    def backward(grad: Tensor) -> Grads:
        apart = ops.new_like(tape, like, "distance to the log-sum-exp")
        shares = ops.new_like(tape, like, "shares of each")
        del apart
        result = ops.new_like(tape, like, "gradient of the log-sum-exp")
        del shares
        return [result]

    node = tape.node((x,), backward)
    tape.save(node, x)
    highest = tape.empty((x.shape[0], 1), x.dtype, "largest of a row")
    scratch = tape.empty(x.shape, x.dtype, "exponentials")
    tape.work(0, 4 * x.num_bytes, x.dtype)
    out = ops.output(node, tape, x.shape[:1], x.dtype, "log-sum-exp")
    tape.save(node, out)
    del scratch, highest
    return out


def cosent(anchors: Tensor, others: Tensor) -> Tensor:
    """CoSENTLoss: one similarity a pair, all pairs compared by sums along their order."""
    left, right = (normalised(ops.to(one, "fp32")) for one in (anchors, others))
    pairs = ops.total(ops.mul(left, right, "products")).view(anchors.shape[0])
    del left, right
    ordered = ops.gathered(ops.scale(pairs), pairs.shape, "similarities in order")
    return ops.total(ordered).view()


def angle(anchors: Tensor, others: Tensor) -> Tensor:
    """AnglELoss: the cosine of each pair, and the products of one half of a vector with the other half of its pair."""
    left, right = (normalised(one) for one in (anchors, others))
    pairs = ops.total(ops.mul(left, right, "products")).view(anchors.shape[0])
    first, second = (ops.part(one, anchors.shape[1] // 2) for one in (left, right))
    crossed = ops.total(ops.subtract(ops.mul(first, second, "products"), ops.mul(second, first, "products")))
    del left, right, first, second
    ordered = ops.gathered(ops.add(pairs, crossed.view(anchors.shape[0])), pairs.shape, "similarities in order")
    return ops.total(ordered).view()


def margin_mse(anchors: Tensor, others: Tensor) -> Tensor:
    """MarginMSELoss: the product of each anchor with its positive text less that with each negative one."""
    samples, width = anchors.shape
    texts = others.view(1, *others.shape)
    scores = [
        ops.total(ops.mul(anchors, ops.rows(texts, samples).view(samples, width), "products")).view(samples)
        for _ in range(others.shape[0] // samples)
    ]
    margins = [ops.subtract(scores[0], one) for one in scores[1:]]
    return ops.total(margins[0]).view()


def cosine_similarity(anchors: Tensor, others: Tensor) -> Tensor:
    """CosineSimilarityLoss, ContrastiveLoss: ``torch.cosine_similarity`` of each pair; then one number for each."""
    left, right = (normalised(one) for one in (anchors, others))
    pairs = ops.total(ops.mul(left, right, "products")).view(anchors.shape[0])
    del left, right
    return ops.total(pairs).view()


def triplet(anchors: Tensor, others: Tensor) -> Tensor:
    """TripletLoss: the Euclidean distances of each anchor to its positive and to its negative text."""
    samples = anchors.shape[0]
    texts = others.view(1, *others.shape)
    near, far = (ops.rows(texts, samples).view(samples, others.shape[1]) for _ in range(2))
    left, right = (ops.norm(ops.subtract(ops.to(anchors, "fp32"), one)) for one in (near, far))
    return ops.total(ops.subtract(left, right)).view()


FUNCTIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "symmetric": symmetric,
    "cosent": cosent,
    "angle": angle,
    "margin_mse": margin_mse,
    "cosine_similarity": cosine_similarity,
    "contrastive": cosine_similarity,
    "online_contrastive": cosine_similarity,
    "triplet": triplet,
}
"""The loss's function by its name; MultipleNegativesRankingLoss elsewhere."""
