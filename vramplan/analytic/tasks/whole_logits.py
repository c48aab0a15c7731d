"""Forwards of preference trainers that hold all logits: their model's outputs are its logits, without a loss."""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import causal_loss, decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.losses import cross_entropy
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec


def logits_of(net: Modules, setting: StepSpec, phase: str, batch: Batch, kept: int | None = None) -> Tensor:
    """``model(input_ids, attention_mask).logits``, which accelerate converts to fp32 under autocast.

    `kept` is ``logits_to_keep``: only the last so many tokens of each row have logits.
    The features of images, outputs too, stay in `net.features` until the caller drops its outputs.
    In ms-swift a row on its own is given a mask instead (4.6, trainers/mixin.py: prepare_logits_to_keep).
    """
    own = own_logits(net, setting, phase, batch, kept)
    logits = _converted(own, setting)
    net.features[:] = [_converted(one, setting) for one in net.features]
    net.hook_outputs.clear()
    return logits


def _converted(logits: Tensor, setting: StepSpec) -> Tensor:
    return ops.to(logits, "fp32", "logits converted to fp32 (accelerate)") if setting.job.casts else logits


def logits_and_loss(
    net: Modules, setting: StepSpec, phase: str, batch: Batch, kept: int | None = None
) -> tuple[Tensor, Tensor]:
    """The same of a model that is given labels of the tokens with logits: its loss is among its outputs."""
    held: list[Tensor] = []
    own = own_logits(net, setting, phase, batch, kept, held)
    net.tape.module = "loss"
    loss = causal_loss(own)
    held.clear()
    logits = _converted(own, setting)
    net.hook_outputs.clear()
    return logits, loss


def own_logits(
    net: Modules,
    setting: StepSpec,
    phase: str,
    batch: Batch,
    kept: int | None = None,
    held: list[Tensor] | None = None,
) -> Tensor:
    """The logits in the dtype of the head; `held` gets the hidden states that the forward holds to its end."""
    job, config = setting.job, setting.config
    with net.tape.autocasting(job.forward_autocast):
        forward = forward_pass(net, setting, phase, batch)
        decoder, architecture = decoder_of(forward), setting.architecture
        hidden = decoder.before_head(net, config, language_model(forward, config))
        if held is not None:
            held.append(hidden)
        if kept is not None:
            hidden = _of_answers(hidden, kept)
            if held is not None:
                held.append(hidden)
        vocabulary, tied = architecture.shape(config).vocabulary, architecture.is_tied(config)
        logits = decoder.after_head(net, config, net.head(hidden, vocabulary, tied, decoder.head_bias))
        del hidden
    return logits


def _of_answers(hidden: Tensor, kept: int) -> Tensor:
    """``hidden_states[:, -kept:, :]``, which the head copies if it is no one block; a row on its own by a mask."""
    rows, length, width = hidden.shape
    if rows == 1:
        return ops.gathered(hidden, (1, kept, width), "hidden states of the answers")
    if kept == length:
        return hidden
    return ops.copy(ops.sliced(hidden, (rows, kept, width)), "hidden states of the answers")


def cross_entropy_of_first(logits: Tensor, rows: int, length: int, labels: Tensor) -> Tensor:
    """The mean cross-entropy of the first `length` tokens of the first `rows` rows, copied if they are no one block."""
    part = logits if rows == logits.shape[0] else ops.sliced(logits, (rows, *logits.shape[1:]))
    if length < logits.shape[1]:
        part = ops.sliced(part, (rows, length, logits.shape[-1]))
        if rows > 1:
            part = ops.copy(part, "logits of chosen answers copied")
    return cross_entropy(part.view(rows * length, logits.shape[-1]), labels)


def logits_and_states(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The same with ``output_hidden_states=True``; the states that accelerate converts are one tensor here."""
    net.states = []
    own = own_logits(net, setting, phase, batch)
    states, net.states = net.states, None
    logits = _converted(own, setting)
    if setting.job.casts and states[0].dtype != "fp32":
        shape = (setting.architecture.shape(setting.config).layers + 1, *states[0].shape)
        converted = net.tape.empty(shape, "fp32", "hidden states converted to fp32 (accelerate)")
        states.clear()
        states.append(converted)
    del own  # all outputs are dropped together
    return logits, states
