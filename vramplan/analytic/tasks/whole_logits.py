"""Forwards of preference trainers that hold all logits: their model's outputs are its logits, without a loss."""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of, language_model
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec


def logits_of(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``model(input_ids, attention_mask).logits``, which accelerate converts to fp32 under autocast."""
    job, config = setting.job, setting.config
    with net.tape.autocasting(job.autocast if job.casts else None):
        forward = forward_pass(net, setting, phase, batch)
        decoder, architecture = decoder_of(forward), setting.architecture
        hidden = decoder.before_head(net, config, language_model(forward, config))
        vocabulary, tied = architecture.shape(config).vocabulary, architecture.is_tied(config)
        logits = decoder.after_head(net, config, net.head(hidden, vocabulary, tied, decoder.head_bias))
        del hidden
    if not job.casts:
        return logits
    return ops.to(logits, "fp32", "logits converted to fp32 (accelerate)")
