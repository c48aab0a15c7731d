"""OpenRLHF's actor: log-probabilities of all tokens by whole fp32 logits, and a loss of clipped ratios.

Mirrors OpenRLHF 0.11 (trainer/ray/ppo_actor.py: ActorPPOTrainer.training_step; models/actor.py: Actor.forward;
models/loss.py: PolicyLoss). The model's output, and with it the logits, has a name until the optimizer step is over.
A row that packs samples is put back into one for each of them (models/ring_attn_utils.py).
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch
from vramplan.analytic.layers.log_probs import compiled_entropies, kept_log_probs
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.whole_logits import logits_of


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``actor_loss`` of a micro-batch of prompts with their responses, and the KL term if there is one."""
    tape, shape = net.tape, batch.inputs["input_ids"].shape
    hold_earlier(net, setting, phase, batch)
    entropies: list[Tensor] = []
    log_probs, logits = _token_log_probs(net, setting, phase, batch, entropies)
    net.loop_locals.append(logits)
    del logits
    tape.module = "loss"
    advantages = tape.empty(shape, "fp32", "advantages")
    before = tape.empty(shape, "fp32", "log-probabilities of the step before")
    mask = tape.empty(shape, "fp32", "tokens of responses")
    difference = ops.subtract(log_probs, before)
    ratio = ops.exp(ops.clamp(difference))
    first, second = ops.mul(ratio, advantages), ops.mul(ops.clamp(ratio), advantages)
    per_token = ops.mul(ops.neg(ops.least(first, second)), mask)
    if setting.job.openrlhf.kl_loss:
        divergence = ops.subtract(log_probs, tape.empty(shape, "fp32", "log-probabilities of the reference"))
        divergence = ops.clamp(ops.add(ops.exp(ops.neg(divergence)), divergence))
        per_token = ops.add(per_token, ops.mul(divergence, mask))
        del divergence
    if entropies:
        per_token = ops.subtract(per_token, ops.mul(entropies.pop(), mask))
    del ratio, first, second, difference, before, advantages, mask
    return ops.scale(ops.total(per_token))


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """Log-probabilities without gradients, of the model or of its reference, without dropout (``Actor.eval``)."""
    net.tape.training = False
    return _token_log_probs(net, setting, phase, batch)[0]


def _token_log_probs(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, entropies: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """(B, S) log-probabilities, and the fp32 logits that the model's output holds; `entropies` gets the entropies."""
    tape, ids = net.tape, batch.inputs["input_ids"]
    shape = ids.shape
    tape.module = "inputs"
    rolled = tape.empty(shape, "int64", "ids rolled by one")
    positions = tape.empty(shape, "int64", "positions of tokens")
    logits = ops.to(logits_of(net, setting, phase, batch), "fp32", "logits in fp32")
    tape.module = "loss"
    if entropies is not None and setting.job.openrlhf.entropy_loss:
        entropies.append(compiled_entropies(logits))
    scored = ops.scale_in_place(logits) if setting.job.openrlhf.divides_logits else logits
    log_probs = ops.neg(kept_log_probs(scored, rolled))
    del scored, positions, rolled, ids
    if setting.job.batches != "padded":
        log_probs = ops.copy(log_probs, "log-probabilities of each sample")
    mask = tape.empty(shape, "fp32", "tokens of responses")
    return ops.mul(log_probs, mask, "log-probabilities of responses"), logits


def hold_earlier(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> None:
    """The samples of the optimizer step's earlier micro-batches, which the loop holds (utils/loss_utils.py)."""
    earlier = setting.job.gradient_accumulation_steps - 1
    if phase == "forward.0" or not earlier:
        return
    net.tape.module = "inputs"
    for name, one in batch.inputs.items():
        shape = (earlier * one.shape[0], *one.shape[1:])
        net.loop_locals.append(net.tape.empty(shape, one.dtype, f"{name.replace('_', ' ')} of the batches before"))
