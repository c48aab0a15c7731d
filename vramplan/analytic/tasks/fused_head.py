"""TRL's fused head as its preference trainers call it: ``model(..., labels=labels, fused_lm_head=True)`` (trl 1.16)."""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.chunked_head import chunked_log_probs, rows_that_count
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.job import Job


def scored_tokens(job: Job) -> int:
    """Tokens of a row that have a log-probability: the first has none, nor have those of the prompt."""
    return job.sequence_length - max(job.prompt_length or 0, 1)


def answer_labels(net: Modules, batch: Batch) -> Tensor:
    """``input_ids.masked_fill(completion_mask == 0, -100)``."""
    tape, ids = net.tape, batch.inputs["input_ids"]
    tape.module = "inputs"
    prompt = tape.empty(ids.shape, "bool", "tokens of the prompt")
    labels = tape.empty(ids.shape, "int64", "labels")
    del prompt
    return labels


def of_samples(sums: Tensor) -> Tensor:
    """The loss from numbers per sample."""
    tape, like = sums.tape, sums.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of numbers per sample")]

    return ops.output(tape.node((sums,), backward), tape, (), "fp32", "loss")


def fused_forward(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, labels: Tensor, extras: tuple[str, ...] = ()
) -> list[Tensor]:
    """Log-probabilities (B, S - 1) of the labels, then `extras`, then the mask of the labels that count."""
    job, config, tape = setting.job, setting.config, net.tape
    with tape.autocasting(job.autocast if job.casts else None):
        forward = forward_pass(net, setting, phase, batch)
        decoder, shape = decoder_of(forward), setting.architecture.shape(config)
        hidden = decoder.before_head(net, config, language_model(forward, config))
        tape.module = "lm_head"
        valid, mask, *row_locals = rows_that_count(hidden, labels, scored_tokens(job))
        weight = net.head_weight(shape.vocabulary, hidden.shape[-1], setting.architecture.is_tied(config))
        bias = net.parameter("lm_head.bias", shape.vocabulary) if decoder.head_bias else None
        per_token = chunked_log_probs(valid, weight, extras, bias)
        del valid, weight, bias
        found = [_spread(one, mask) for one in per_token]
        loss = ops.output(None, tape, (), "fp32", "mean log-probability")
        del per_token, row_locals, hidden
        net.features.clear()  # of the model below the head, whose outputs are dropped with the function
    return [*found, mask, loss]


def _spread(per_token: Tensor, mask: Tensor) -> Tensor:
    """``x.new_zeros(mask.shape).masked_scatter(mask, x)``."""
    zeros = per_token.tape.empty(mask.shape, per_token.dtype, "zeros")
    return ops.scatter_rows(zeros, mask, per_token)
