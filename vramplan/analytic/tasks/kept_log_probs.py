"""OpenRLHF's own training steps (0.11.2: trainer/sft_trainer.py, dpo_trainer.py, rm_trainer.py, models/).

Logits replace the model's own in fp32, and FlashAttention's cross-entropy keeps them for its backward. In supervised
training the loop's name for the model's output holds them until the next micro-batch's output is there. A reward model
is a model without its head, with a linear layer beside it that makes a number of each token.
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.log_probs import kept_log_probs
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.fused_head import of_samples
from vramplan.analytic.tasks.reference import WITH_MODEL, as_reference
from vramplan.analytic.tasks.whole_logits import logits_of


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The loss of ``SFTTrainer.fit``, ``DPOTrainer.fit`` or ``RewardModelTrainer.fit``."""
    last_graph = _last_graph(net, setting, phase, batch)
    own = {"dpo": _dpo_loss, "reward": _reward_loss}.get(setting.job.task or "", _sft_loss)
    loss = own(net, setting, phase, batch)
    del last_graph
    return loss


def _last_graph(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor | None:
    """What the loop's name for the last step's loss keeps: with adapters the embeddings, and their gradient."""
    if phase != "forward.0" or setting.job.method == "full":
        return None
    net.tape.module = "inputs"
    ids, width = batch.inputs["input_ids"].shape, setting.architecture.shape(setting.config).hidden
    return net.tape.empty((2, *ids, width), setting.job.dtype, "last step's embeddings, and their gradient")


def _sft_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    tape, ids = net.tape, batch.inputs["input_ids"]
    if tape.grad_enabled and not net.loop_locals:
        vocabulary = setting.architecture.shape(setting.config).vocabulary
        net.loop_locals.append(tape.empty((*ids.shape, vocabulary), "fp32", "logits of the last micro-batch", "logits"))
    rolled = tape.empty(ids.shape, "int64", "ids rolled by one")
    logits = _in_fp32(logits_of(net, setting, phase, batch))
    log_probs = kept_log_probs(logits, rolled)
    net.loop_locals[:] = [logits] if tape.grad_enabled else []
    del logits, rolled
    return ops.total(log_probs).view()


def _dpo_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """The policy's concatenated_forward, then the reference's: each drops its outputs."""
    given = _both_answers(setting, batch)
    sums = _answer_log_probs(logits_of(net, setting, phase, given))
    del given
    if setting.job.reference_source in WITH_MODEL:
        given = _both_answers(setting, batch)
        with as_reference(net, phase) as own:
            reference = [logits_of(net, setting, own, given)]
        _answer_log_probs(reference.pop())
        del given
    return of_samples(sums)


def _reward_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``concatenated_forward`` of both answers, whose positions are counted for each row (models/model.py)."""
    tape, given = net.tape, _both_answers(setting, batch)
    ids = given.inputs["input_ids"]
    ends = tape.empty((ids.shape[0], 1), "int64", "last tokens of texts")
    given.inputs["position_ids"] = tape.empty(ids.shape, "int64", "positions of tokens")
    hidden = language_model(forward_pass(net, setting, phase, given), setting.config)
    values = net.linear("score", hidden, 1)
    tape.module = "loss"
    rewards = ops.gather(values.view(*ids.shape), ends, (ids.shape[0], 1)).view(ids.shape[0])
    del given, ids, ends, hidden, values
    return of_samples(rewards)


def _both_answers(setting: StepSpec, batch: Batch) -> Batch:
    """``concatenated_inputs``."""
    ids = batch.inputs["input_ids"]
    ids.tape.module = "inputs"
    names = ("input_ids", "attention_mask", *(("position_ids",) if setting.job.batches == "packed" else ()))
    return batch._replace(
        inputs={name: ids.tape.empty(ids.shape, "int64", f"{name} of both answers") for name in names}
    )


def _answer_log_probs(logits: Tensor) -> Tensor:
    """The log-probability of each answer."""
    tape, shape = logits.tape, logits.shape[:2]
    rolled = tape.empty(shape, "int64", "ids rolled by one")
    log_probs = kept_log_probs(_in_fp32(logits), rolled)
    scored = tape.empty(shape, "bool", "tokens of answers")
    return ops.total(ops.mul(log_probs, scored, "log-probabilities of answers"))


def _in_fp32(logits: Tensor) -> Tensor:
    """``output["logits"] = output["logits"].to(torch.float32)``."""
    logits.tape.module = "loss"
    return ops.to(logits, "fp32", "logits in fp32")
