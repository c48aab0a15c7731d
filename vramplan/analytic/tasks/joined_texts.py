"""Text embeddings as ms-swift trains them: all texts in one forward of the causal language model (4.6).

Its head passes the states (model/patcher.py: patch_output_normalizer), of which the last of each text is normalised;
the losses are its own (loss/embedding.py).
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import contrastive
from vramplan.analytic.tasks.separate_texts import separate_texts
from vramplan.inputs.job import Job


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """What ms-swift's trainer does on a micro-batch."""
    job, tape = setting.job, net.tape
    with tape.autocasting(job.autocast if job.casts else None):
        vectors = _vectors(net, setting, phase, batch)
    tape.module = "loss"
    if job.casts:
        vectors = ops.to(vectors, "fp32", "outputs converted to fp32 (accelerate)")
    loss = _loss(vectors, batch.inputs["labels"], job)
    net.cache.clear()
    return loss


def _vectors(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The normalised state of each text's last token; the head's weight is loaded and multiplies nothing."""
    c, architecture = setting.config, setting.architecture
    forward = forward_pass(net, setting, phase, batch)
    states = decoder_of(forward).before_head(net, c, language_model(forward, c))
    rows, _, width = states.shape
    if not architecture.is_tied(c):  # without a gradient, the optimizer makes no states for it
        net.parameter("lm_head.weight", architecture.shape(c).vocabulary, width, frozen=True)
    if setting.job.joins_samples:
        states = separate_texts(states, batch.inputs["input_ids"].shape[0])
    last = ops.gathered(states, (rows, width), "states of the last tokens")
    return contrastive.normalised(last)


def _loss(vectors: Tensor, labels: Tensor, job: Job) -> Tensor:
    """The loss of vectors that lie sample by sample: an anchor, its positive text, others."""
    texts, width = 2 + job.negatives, vectors.shape[-1]
    samples = vectors.shape[0] // texts
    if job.embedding_loss != "multiple_negatives":
        first = ops.gathered(vectors, (samples, width), "first texts of pairs")
        second = ops.gathered(vectors, (samples, width), "second texts of pairs")
        return contrastive.of_width(first, second, job)
    stacked = ops.copy(vectors, "texts by samples").view(samples, texts, width)  # torch.stack
    queries = ops.rows(stacked, 1).view(samples, width)
    others = ops.rows(stacked, texts - 1).view(samples * (texts - 1), width)
    flops = 2 * samples * others.shape[0] * width
    similar = ops.matmul(queries, others, flops, (samples, others.shape[0]), "similarities")
    del stacked, queries, others
    joined = ops.copy(similar, "similarities of all directions")  # torch.cat
    return losses.cross_entropy(ops.scale(joined, "scaled similarities"), labels)
