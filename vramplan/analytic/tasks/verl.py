"""verl's actor on a micro-batch without padding: log-probabilities of all tokens, and a loss of clipped ratios.

Mirrors verl 0.9.1 (workers/engine/fsdp/transformer_impl.py: prepare_model_outputs; workers/utils/losses.py: ppo_loss;
trainer/ppo/core_algos.py: compute_policy_loss_vanilla). Up to 0.7 workers/actor/dp_actor.py computes the same.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.log_probs import divided, token_entropies, token_log_probs
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.sequence_parallel import of_all_tokens
from vramplan.analytic.layers.verl_head import fused_log_probs
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.verl_loss import policy_loss
from vramplan.analytic.tasks.whole_logits import own_logits

HEAD = "lm_head"


def fused(net: Modules, setting: StepSpec, phase: str, batch: Batch, entropy: bool) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of all tokens by a fused head, whose weight is the root's."""
    job, config, tape = setting.job, setting.config, net.tape
    architecture = setting.architecture
    with tape.autocasting(job.forward_autocast):
        forward = forward_pass(net, setting, phase, batch)
        hidden = decoder_of(forward).before_head(net, config, language_model(forward, config))
        tape.module = HEAD
        tokens = hidden.shape[0] * hidden.shape[1]
        labels = tape.empty((tokens,), "int64", "ids rolled by one")
        weight = net.head_weight(architecture.shape(config).vocabulary, hidden.shape[-1], architecture.is_tied(config))
        found = fused_log_probs(hidden, weight, labels, job.verl.fused_head or "", entropy)
    del hidden, labels
    tape.module = "loss"
    gpus, whole = job.verl.sequence_parallel, batch.inputs["input_ids"].num_elements
    log_probs, entropies = found
    return of_all_tokens(log_probs, gpus, whole), of_all_tokens(entropies, gpus, whole) if entropy else entropies


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``ppo_loss`` of a micro-batch of prompts with their completions."""
    tape = net.tape
    if setting.job.verl.fused_head is not None:
        output = fused(net, setting, phase, batch, setting.job.verl.entropy)
        padded = [ops.copy(one, "log-probabilities, padded") for one in output[: 1 + setting.job.verl.entropy]]
        loss = policy_loss(padded[0], padded[1] if setting.job.verl.entropy else None)
        del padded, output
        return loss
    logits = own_logits(net, setting, phase, batch)
    tape.module = "loss"
    rows = logits.shape[0] * logits.shape[1]
    labels = tape.empty((rows,), "int64", "ids rolled by one")
    scaled = divided(logits, setting.job.verl.logits)
    has_entropy = setting.job.verl.entropy  # of whose gradient the logits are a part, so that none overwrites them
    gpus, whole = setting.job.verl.sequence_parallel, batch.inputs["input_ids"].num_elements
    log_probs = token_log_probs(scaled, labels, in_place=not has_entropy)
    entropies = token_entropies(scaled) if has_entropy else None
    del scaled, labels
    log_probs = of_all_tokens(log_probs, gpus, whole)
    if entropies is not None:
        entropies = ops.copy(of_all_tokens(entropies, gpus, whole), "entropies, padded")
    log_probs = ops.copy(log_probs, "log-probabilities, padded")
    loss = policy_loss(log_probs, entropies)
    del log_probs, entropies, logits  # the model's output is named until the step's forward returns
    return loss


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """Log-probabilities without gradients; torch.compile's kernels of their entropies hold no logits of their own."""
    if setting.job.verl.fused_head is not None:
        return fused(net, setting, phase, batch, False)[0]
    logits = own_logits(net, setting, phase, batch)
    net.tape.module = "loss"
    labels = net.tape.empty((logits.shape[0] * logits.shape[1],), "int64", "ids rolled by one")
    log_probs = token_log_probs(divided(logits, setting.job.verl.logits), labels)
    return of_all_tokens(log_probs, setting.job.verl.sequence_parallel, batch.inputs["input_ids"].num_elements)
