"""GRPO as TRL's GRPOTrainer trains on completions: their log-probabilities, and a loss of clipped ratios.

Mirrors trl 1.12 (trainer/grpo_trainer.py: _get_per_token_logps_and_entropies, _compute_loss), whose logits exist as a
whole (``loss`` standard), trl 1.0 to 1.9, which divides them where they lie (divided_in_place), and trl
1.16, whose head is fused with the log-probabilities (``loss`` chunked). Its other values of ``loss_type`` differ in
tensors of one number for each token of a completion.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass, in_one_row
from vramplan.analytic.layers.label_log_probs import entropies_with_graph, label_log_probs
from vramplan.analytic.layers.log_probs_of_loss import entropies_of, log_probs_of
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.token_log_probs import token_log_probs as token_log_probs_of_row
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks import liger_grpo
from vramplan.analytic.tasks.fused_head import fused_forward, scored_tokens
from vramplan.analytic.tasks.shared_tokens import shared_log_probs
from vramplan.inputs.task_rules import DIVIDED_IN_PLACE, OF_SWIFT


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``GRPOTrainer.compute_loss`` on a micro-batch of prompts with their completions."""
    if setting.job.loss in ("liger", "liger_logits_to_keep"):
        return liger_grpo.compute_loss(net, setting, phase, batch)
    tape = net.tape
    kept: dict[str, Tensor] = {}
    log_probs = token_log_probs(net, setting, phase, batch, kept)
    tape.module = "loss"
    shape = log_probs.shape
    mask = tape.empty(shape, "int64", "mask of the completions")
    advantages = tape.empty((shape[0], 1), "fp32", "advantages")
    ratio = ops.exp(ops.subtract(log_probs, tape.empty(shape, "fp32", "log-probabilities of the step before")))
    clipped = ops.clamp(ratio)
    first, second = ops.mul(ratio, advantages), ops.mul(clipped, advantages)
    per_token = ops.neg(ops.least(first, second))
    del ratio, clipped, first, second
    if setting.job.reference not in (None, "none"):  # beta is not 0
        difference = ops.subtract(tape.empty(shape, "fp32", "log-probabilities of the reference"), log_probs)
        divergence = ops.shift(ops.subtract(ops.exp(difference), difference))
        per_token = ops.add(per_token, ops.scale(divergence))
        del difference, divergence
    loss = ops.scale(ops.total(ops.mul(per_token, mask).view(shape[0] * shape[1])))
    kept.clear()
    return loss


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The log-probabilities of the completions alone, as they are taken without gradients."""
    return token_log_probs(net, setting, phase, batch)


def token_log_probs(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, kept: dict[str, Tensor] | None = None
) -> Tensor:
    """Log-probabilities (B, C) of the completions' tokens in fp32.

    Their entropies are computed too, and kept, if `kept` is given.
    """
    tape, job = net.tape, setting.job
    ids = batch.inputs["input_ids"]
    rows, length = ids.shape
    tokens = scored_tokens(job)
    if job.loss in OF_SWIFT:
        return _of_divided_logits(net, setting, phase, batch, kept)
    tape.module = "inputs"
    names = {"input_ids": "prompts and completions", "attention_mask": "mask of both"}
    both = {name: tape.empty((rows, length), "int64", what) for name, what in names.items()}
    joined = batch._replace(inputs={**batch.inputs, **both})
    del both
    if job.loss == "chunked":
        labels = tape.empty((rows, length), "int64", "labels")
        found = fused_forward(net, setting, phase, joined, labels, ("entropy",))
        del labels
        if kept is not None:
            kept["entropy"] = found[1]
        return ops.join_rows([ops.sliced(found[0], (rows, tokens))], (rows, tokens))
    logits = _logits(net, setting, phase, joined, tokens)
    tape.module = "loss"
    shape, in_place = (rows, tokens, logits.shape[-1]), job.loss in DIVIDED_IN_PLACE
    if in_place:
        divided = ops.scale_slice(logits, shape)
    else:
        divided = ops.scale(ops.sliced(logits, shape), "logits divided by the temperature")
    is_contiguous = rows == 1 or not in_place
    labels = tape.empty((rows, tokens, 1), "int64", "tokens of the completions")
    log_probs = log_probs_of(job.loss, divided, labels, is_contiguous)
    if kept is not None:
        kept["entropy"] = entropies_of(job.loss, divided, is_contiguous)
    del logits, divided  # the model's outputs live until the function returns
    return log_probs.view(rows, tokens)


def _of_divided_logits(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, kept: dict[str, Tensor] | None
) -> Tensor:
    """The same in ms-swift (4.6, rlhf_trainers/grpo_trainer.py: _get_logps_via_local_forward).

    The batch holds prompts with completions in one piece, and the temperature divides the logits where they lie. With
    padding_free it is one row, with logits of all tokens behind the first prompt, and the log-probabilities are taken
    apart again into rows as long as those (utils.py: pad_logps_back_to_batch).
    """
    tape, (rows, length), tokens = net.tape, batch.inputs["input_ids"].shape, scored_tokens(setting.job)
    samples, joins = rows, setting.job.joins_samples
    if setting.job.swift.sequence_parallel > 1:
        return shared_log_probs(net, setting, phase, batch, kept)
    if joins:
        batch, rows, tokens = in_one_row(batch, setting), 1, tokens + (rows - 1) * length
    logits = _logits(net, setting, phase, batch, tokens)
    tape.module = "loss"
    divided = ops.scale_slice(logits, (rows, tokens, logits.shape[-1]))
    del logits
    labels = tape.empty((rows, tokens, 1), "int64", "tokens of the completions")
    if joins:
        log_probs = token_log_probs_of_row(divided.view(tokens, divided.shape[-1]), labels)
    else:
        log_probs = label_log_probs(divided, labels)
    if kept is not None and setting.job.entropy_graph:
        for number, tensor in enumerate(entropies_with_graph(divided, is_contiguous=rows == 1)):
            kept[f"entropy.{number}"] = tensor
        del tensor
    if joins:
        return ops.gathered(log_probs, (samples, tokens), "log-probabilities in rows")
    return log_probs.view(rows, tokens)


def _logits(net: Modules, setting: StepSpec, phase: str, batch: Batch, tokens: int) -> Tensor:
    """``model(..., logits_to_keep=tokens + 1).logits``, which accelerate converts to fp32."""
    job, config, architecture = setting.job, setting.config, setting.architecture
    with net.tape.autocasting(job.autocast if job.casts else None):
        forward = forward_pass(net, setting, phase, batch)
        decoder, shape = decoder_of(forward), architecture.shape(config)
        hidden = decoder.before_head(net, config, language_model(forward, config))
        rows, length, width = hidden.shape
        last = ops.sliced(hidden, (rows, min(length, tokens + 1), width))
        del hidden
        last = ops.copy(last, "hidden states of the completions") if rows > 1 else last
        head = net.head(last, shape.vocabulary, architecture.is_tied(config), decoder.head_bias)
        logits = decoder.after_head(net, config, head)
        del last, head
    if job.loop == "trainer" and job.casts:
        logits = ops.to(logits, "fp32", "outputs converted to fp32 (accelerate)")
    net.hook_outputs.clear()
    return logits
