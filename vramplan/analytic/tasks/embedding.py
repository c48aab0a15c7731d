"""Text embeddings as sentence-transformers trains them: a forward for the anchors, one for all other texts.

sentence-transformers 6.2 (base/losses/merged_forward.py: embed_columns, which joins the texts behind the anchor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vramplan.analytic.architectures.forward_pass import ForwardPass
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import cached, contrastive
from vramplan.analytic.tasks.encoded import encoded
from vramplan.analytic.tasks.pooling import pool
from vramplan.inputs.embedding import columns, dense_widths, pooling_of
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config

MakePass = Callable[[dict[str, Tensor]], ForwardPass]
"""The forward of a batch with these inputs."""


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """What sentence-transformers' trainer does on a micro-batch."""

    def make(inputs: dict[str, Tensor]) -> ForwardPass:
        return forward_pass(net, setting, phase, batch._replace(inputs=inputs))

    loss = run(make, setting.config, setting.job, batch.inputs)
    net.tape.run = 0
    net.cache.clear()
    return loss


def run(make: MakePass, c: Config, job: Job, batch: Mapping[str, Tensor]) -> Tensor:
    """The loss of a micro-batch: vectors of the anchors and of the others, then their similarities."""
    if job.embedding_loss == "cached_multiple_negatives":
        return cached.run(vectors, make, c, job, [of_column(batch, name) for name in columns(job)])
    names = columns(job)
    held: list[Tensor] = []
    anchors = vectors(make, c, job, of_column(batch, names[0]), 0, held)
    others = vectors(make, c, job, joined([of_column(batch, name) for name in names[1:]]), 1, held)
    anchors.tape.module = "loss"
    loss = contrastive.loss(anchors, others, batch.get("labels"), job)
    del held  # the trainer's features, which Transformer.forward writes into
    return loss


def through_dense(net: Modules, x: Tensor) -> Tensor:
    """EmbeddingGemma's layers behind its pooling, which train beside adapters too: they are not PEFT's."""
    for number, width in enumerate(dense_widths(x.shape[-1])):
        net.tape.module = f"dense.{number}"
        weight = net.trained_head(f"dense.{number}.linear.weight", net.training.dtype, width, x.shape[-1])
        x = ops.linear(x, weight, None)
    return x


def of_column(batch: Mapping[str, Tensor], column: str) -> dict[str, Tensor]:
    """The inputs of one column's texts."""
    return {name: batch[f"{column}_{name}"] for name in ("input_ids", "attention_mask")}


def joined(texts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """All texts as one batch; one column's stay as they are."""
    if len(texts) == 1:
        return texts[0]
    first = texts[0]
    samples, length = first["input_ids"].shape
    return {
        name: one.tape.empty((len(texts) * samples, length), one.dtype, f"{name} of all texts")
        for name, one in first.items()
    }


def vectors(make: MakePass, c: Config, job: Job, texts: dict[str, Tensor], number: int, held: list[Tensor]) -> Tensor:
    """One forward of the model: states, pooled; accelerate converts both to fp32, and the states go at once.

    The model's own half-precision states stay in the trainer's features until the loss is there.
    """
    forward = make(texts)
    tape = forward.tape
    tape.run, forward.phase = number, tape.phase
    tape.enter(tape.phase, None)
    with tape.autocasting(job.autocast if job.casts else None):
        states = encoded(forward, c)
        unused = [] if forward.architecture.pooler is None else [forward.architecture.pooler(forward, states)]
        unused.clear()
        tape.module = "pooling"
        decoder = forward.architecture.decoder
        with_dense = decoder is not None and decoder.both_ways(c)
        pooled = pool(states, texts["attention_mask"], pooling_of(job, decoder is None or with_dense))
        if with_dense:
            pooled = through_dense(forward.net, pooled)
    held.append(states)
    if job.loop == "trainer" and job.casts:
        converted = ops.to(states, "fp32", "outputs converted to fp32 (accelerate)")
        pooled = ops.to(pooled, "fp32", "outputs converted to fp32 (accelerate)")
        if job.matryoshka_dims is not None:  # ForwardDecorator keeps the outputs for the other widths
            held.append(converted)
    return pooled
