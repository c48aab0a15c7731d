"""Distillation as TRL's DistillationTrainer computes it: hidden states of both models, and logits by tiles.

(trl 1.16, trainer/distillation_trainer.py: _compute_loss, _chunked_divergence_loss.) It calls the models below their
heads, so that accelerate's autocast, which wraps the models' own forward, does not reach them.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.chunked_divergence import chunked_divergence
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.tasks.reference import without_gradients


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``DistillationTrainer._compute_loss`` on a micro-batch of prompts and completions."""
    tape, job = net.tape, setting.job
    tape.module = "inputs"
    shape = batch.inputs["prompt_ids"].shape[0], job.sequence_length
    names = {"input_ids": "prompts and completions", "attention_mask": "mask of both"}
    both = {name: tape.empty(shape, "int64", what) for name, what in names.items()}
    joined = batch._replace(inputs={**batch.inputs, **both})
    own = _hidden(net, setting, phase, joined)
    with without_gradients(net, phase, name="teacher") as taught:
        assert setting.teacher is not None
        with tape.second_model():
            teacher = Modules(tape, setting.teacher.training(), setting.teacher.liger)
            other = _hidden(teacher, setting.teacher, taught, joined)
            other_weight, _ = _head(teacher, setting.teacher, other)
    tape.module = "lm_head"
    weight, bias = _head(net, setting, own)
    mask = tape.empty((shape[0] * scored_tokens(job),), "bool", "tokens that count")
    rows = [_in_rows(hidden) for hidden in (own, other)]
    counted = [_counted(hidden, mask) for hidden in rows]
    rows.clear()
    per_token, entropy = chunked_divergence(counted[0], weight, bias, counted[1], other_weight, job.divergence)
    counted.clear()
    tape.module = "loss"
    loss = ops.scale(ops.total(per_token), "loss")
    del entropy, per_token, own, other, both, joined, mask
    return loss


def _hidden(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``_get_last_hidden_state``: those that tell the completion's tokens, a view of all."""
    config = setting.config
    forward = forward_pass(net, setting, phase, batch)
    hidden = decoder_of(forward).before_head(net, config, language_model(forward, config))
    rows, length, width = hidden.shape
    before_last = ops.sliced(hidden, (rows, length - 1, width))
    return ops.sliced(before_last, (rows, scored_tokens(setting.job), width))


def _head(net: Modules, setting: StepSpec, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    """The weight of the head, and its bias."""
    architecture, decoder = setting.architecture, setting.architecture.decoder
    assert decoder is not None
    vocabulary = architecture.shape(setting.config).vocabulary
    weight = net.head_weight(vocabulary, hidden.shape[-1], architecture.is_tied(setting.config))
    return weight, net.parameter("lm_head.bias", vocabulary) if decoder.head_bias else None


def _in_rows(hidden: Tensor) -> Tensor:
    """``hidden.reshape(-1, H)``, a copy unless there is one sample."""
    rows, tokens, width = hidden.shape
    return (hidden if rows == 1 else ops.copy(hidden, "hidden states in rows")).view(rows * tokens, width)


def _counted(rows: Tensor, mask: Tensor) -> Tensor:
    """``rows[mask]``."""
    tape, like = rows.tape, rows.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the tokens that count")]

    node = tape.node((rows,), backward)
    tape.save(node, mask)
    positions = tape.empty((rows.shape[0], 1), "int64", "positions of the tokens that count")
    out = ops.output(node, tape, rows.shape, rows.dtype, "hidden states of the tokens that count")
    del positions
    return out
