"""Losses on GPUs that share each text, as ms-swift's trainers compute them: each takes those of its own tokens.

(4.6: trainers/utils.py, per_token_loss_func_sp; rlhf_trainers/grpo_trainer.py, _get_logps_via_sp; rlhf_mixin.py,
get_per_token_logps.) All tokens have logits, prompts too. The model gets no labels; what each token has is gathered.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, in_one_row
from vramplan.analytic.layers.label_log_probs import entropies_with_graph, label_log_probs
from vramplan.analytic.layers.losses import token_cross_entropy
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.swift_sequence import cross_entropy_in_chunks, of_whole_rows
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.tasks.whole_logits import logits_of


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``Seq2SeqTrainer.compute_loss``."""
    tape, swift = net.tape, setting.job.swift
    if setting.job.joins_samples:
        batch = in_one_row(batch, setting)
    length = batch.inputs["input_ids"].shape[1]
    logits = logits_of(net, setting, phase, batch)
    tape.module = "loss"
    rows, own, vocabulary = logits.shape
    flat, labels = logits.view(rows * own, vocabulary), tape.empty((rows * own,), "int64", "labels rolled by one")
    if swift.cross_entropy_chunk is None:
        losses = token_cross_entropy(flat, labels)
    else:
        losses = cross_entropy_in_chunks(flat, labels, swift.cross_entropy_chunk, swift.chunks_in_place)
    gathered = of_whole_rows(losses.view(rows, own), swift.sequence_parallel, length)
    del losses, flat
    of_others = tape.empty((rows, length), "int64", "labels of all tokens")
    loss = ops.scale(ops.total(gathered.view(rows * length)))
    net.features.clear()
    del gathered, of_others, logits, labels
    return loss


def shared_log_probs(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, kept: dict[str, Tensor] | None
) -> Tensor:
    """GRPO's log-probabilities (B, C) of completions; the logits live beside those divided by the temperature."""
    tape, job, (samples, length) = net.tape, setting.job, batch.inputs["input_ids"].shape
    tokens = scored_tokens(job)
    if job.joins_samples:
        batch, tokens, length = in_one_row(batch, setting), tokens + (samples - 1) * length, samples * length
    gpus = job.swift.sequence_parallel
    logits = logits_of(net, setting, phase, batch)
    tape.module = "loss"
    rows, own, _ = logits.shape
    labels = tape.empty((rows, own), "int64", "tokens rolled by one")
    divided = ops.scale(logits, "logits divided by the temperature")
    log_probs = of_whole_rows(label_log_probs(divided, labels).view(rows, own), gpus, length)
    if kept is not None and job.entropy_graph:
        for number, tensor in enumerate(entropies_with_graph(divided, is_contiguous=True)):
            kept[f"entropy.{number}"] = tensor
        del tensor
    of_others = tape.empty((rows, length), "int64", "tokens of all GPUs")
    del divided, labels, of_others, logits
    found = ops.sliced(log_probs, (rows, tokens))
    return ops.gathered(found, (samples, tokens), "log-probabilities in rows") if job.joins_samples else found


def shared_answers(net: Modules, setting: StepSpec, phase: str, batch: Batch, after: str) -> tuple[Tensor, Tensor]:
    """DPO's log-probability of each answer, and the means of the logits, which live as long as it."""
    tape, job = net.tape, setting.job
    if job.joins_samples:
        batch = in_one_row(batch, setting)
    gpus, length = job.swift.sequence_parallel, batch.inputs["input_ids"].shape[1]
    logits = logits_of(net, setting, phase, batch)
    tape.enter(after, None)
    tape.module = "loss"
    rows, own, _ = logits.shape
    scored = tape.empty((rows, own), "bool", "tokens of answers")
    labels = tape.empty((rows, own), "int64", "labels without a mask")
    means = tape.empty((rows, own), logits.dtype, "means of the logits")
    per_token = of_whole_rows(label_log_probs(logits, labels).view(rows, own), gpus, length)
    all_scored = tape.empty((rows, length), "bool", "tokens of answers of all GPUs")
    all_means = tape.empty((rows, length), logits.dtype, "means of the logits of all GPUs")
    sums = ops.total(ops.mul(per_token, all_scored, "log-probabilities of answers"))
    net.features.clear()
    del logits, scored, labels, means, per_token, all_scored
    return sums, all_means
