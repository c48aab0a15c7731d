"""GRPO as TRL trains it: the log-probabilities of completions, and a loss of clipped ratios.

Mirrors trl 1.12 (trainer/grpo_trainer.py: _get_per_token_logps_and_entropies, _compute_loss), whose logits exist as a
whole, and trl 1.16, whose head is fused with the log-probabilities (``loss`` chunked). The other losses of its
``loss_type`` differ in tensors of one number for each token of a completion.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.tasks.token_log_probs import entropy, selected_log_softmax
from vramplan.inputs.model_spec import Config


def policy_loss(forward: ForwardPass, c: Config) -> ModelOutput:
    """The loss of a micro-batch of prompts with their completions."""
    log_probs, entropies = token_log_probs(forward, c, with_entropy=True)
    tape = forward.tape
    tape.module = "loss"
    shape, rows = log_probs.shape, (log_probs.shape[0], 1)
    mask, advantages = tape.empty(shape, "int64", "mask of the completions"), tape.empty(rows, "fp32", "advantages")
    ratio = ops.exp(ops.subtract(log_probs, tape.empty(shape, "fp32", "log-probabilities of the step before")))
    clipped = ops.clamp(ratio)
    first, second = ops.mul(ratio, advantages), ops.mul(clipped, advantages)
    least = ops.neg(ops.minimum(first, second))
    if references(forward):
        difference = ops.subtract(tape.empty(shape, "fp32", "log-probabilities of the reference"), log_probs)
        divergence = ops.shift(ops.subtract(ops.exp(difference), difference))
        least = ops.add(least, ops.scale(divergence))
    loss = ops.scale(ops.total(ops.mul(least, mask)))
    del entropies
    return ModelOutput(loss, [])


def references(forward: ForwardPass) -> bool:
    """Whether a reference model is part of the loss (beta is not 0)."""
    return forward.job.reference not in (None, "none")


def scores(forward: ForwardPass, c: Config) -> ModelOutput:
    """The log-probabilities of the completions alone, as they are taken without gradients."""
    return ModelOutput(token_log_probs(forward, c, with_entropy=False)[0], [])


def token_log_probs(forward: ForwardPass, c: Config, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    """(log-probabilities, entropies) of the completions' tokens, (B, C) in fp32."""
    net, tape, job = forward.net, forward.tape, forward.job
    architecture, decoder, placement = forward.architecture, decoder_of(forward), forward.placement
    with tape.on(placement.norm):
        hidden = decoder.before_head(net, c, language_model(forward, c))
    batch, length, width = hidden.shape
    tokens = completion_length(forward)
    vocabulary, tied = architecture.shape(c).vocabulary, architecture.is_tied(c)
    with tape.on(placement.head):
        hidden = ops.move(hidden, placement.head)
        if job.loss == "chunked":
            weight = net.head_weight(vocabulary, width, tied)
            return losses.chunked_log_probs(hidden, weight, forward.inputs["input_ids"], tokens, with_entropy)
        kept = ops.sliced(hidden, (batch, min(length, tokens + 1), width))
        del hidden
        kept = ops.copy(kept, "hidden states of the completions") if batch > 1 else kept
        logits = decoder.after_head(net, c, net.head(kept, vocabulary, tied, decoder.head_bias))
        del kept
    logits = ops.move(logits, 0)
    if job.loop == "trainer" and job.casts:
        logits = ops.to(logits, "fp32", "outputs converted to fp32 (accelerate)")
    tape.module = "loss"
    logits = ops.scale(ops.sliced(logits, (batch, tokens, vocabulary)), "logits divided by the temperature")
    log_probs = selected_log_softmax(logits, tape.empty((batch, tokens, 1), "int64", "tokens of the completions"))
    return log_probs, entropy(logits) if with_entropy else None


def completion_length(forward: ForwardPass) -> int:
    """Tokens of a completion."""
    return max(1, forward.job.sequence_length - (forward.job.prompt_length or 0))
