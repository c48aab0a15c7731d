"""verl's actor on a micro-batch of padded rows, without ``use_remove_padding``: all logits, and a copy of those scored.

Mirrors verl 0.7.1 (workers/actor/dp_actor.py: _forward_micro_batch), where the logits of the responses are copied, and
0.9.1 (workers/engine/fsdp/transformer_impl.py: prepare_model_outputs), where those of all tokens are joined.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.ops import new_like
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.log_probs import token_log_probs
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.whole_entropies import whole_entropies
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.verl_loss import policy_loss
from vramplan.analytic.tasks.whole_logits import own_logits


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``ppo_loss`` of a micro-batch."""
    log_probs, entropies = _forward(net, setting, phase, batch, setting.job.verl.entropy)
    return policy_loss(log_probs, entropies)


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """Log-probabilities without gradients; the actor's scoring takes entropies too (fsdp_workers.py)."""
    return _forward(net, setting, phase, batch, True)[0]


def _forward(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, has_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the responses, and their entropies."""
    output = logits = own_logits(net, setting, phase, batch)  # the model's output is named until the forward returns
    net.tape.module = "loss"
    how, (samples, length, vocabulary) = setting.job.verl, logits.shape
    if how.logits == "in_place":
        logits = output = ops.scale_in_place(output)
    elif how.logits == "copied":
        logits = ops.scale(output, "logits divided by the temperature")
    if how.joins_rows:
        entropies = whole_entropies(logits) if has_entropy else None
        return _log_probs(_joined(logits)), entropies
    answers = ops.sliced(logits, (samples, length - (setting.job.prompt_length or 0), vocabulary))
    # of several rows they are no one block
    log_probs = _log_probs(answers if samples == 1 else ops.copy(answers, "logits of the responses"))
    return log_probs, whole_entropies(answers) if has_entropy else None


def _log_probs(logits: Tensor) -> Tensor:
    """(N,) log-probabilities of the labels, whose backward overwrites the logits."""
    return token_log_probs(logits.view(logits.num_elements // logits.shape[-1], logits.shape[-1]))


def _joined(logits: Tensor) -> Tensor:
    """The rows of (B, S, V) logits one after the other: ``torch.cat(torch.nested.narrow(logits, ...).unbind())``.

    All rows are as long as the longest. Unbinding keeps the logits, and its gradient begins as zeros; narrowing slices
    (torch 2.13, nested/_internal/ops.py; FunctionsManual.cpp: unbind_backward_nested_jagged).
    """
    tape, like = logits.tape, logits.like
    rows = ops.sliced(logits, logits.shape)
    node = tape.node((rows,), lambda grad: [new_like(tape, like, "gradient of nested rows", passes=2)])
    tape.save(node, rows)
    tape.work(0, 2 * logits.num_bytes, like.dtype)
    return ops.output(node, tape, logits.shape, like.dtype, "logits of all rows joined")
