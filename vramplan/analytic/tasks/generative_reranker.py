"""A reranker that scores a text by the language model's own words: the logit of yes less that of no.

ms-swift 4.6 (model/register.py: _patch_generative_reranker; trainers/reranker_trainer.py: compute_loss).
"""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import decoder_of
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.layers import losses
from vramplan.analytic.tasks.encoded import encoded
from vramplan.analytic.tasks.separate_texts import separate_texts
from vramplan.inputs.model_spec import Config

WORDS = 2
"""Rows of the head's weight that are multiplied: those of yes and of no."""


def forward(forward: ForwardPass, c: Config) -> ModelOutput:
    """Scores of all tokens, of which each text's last counts; the rest of the head's weight multiplies nothing."""
    net, job, ids = forward.net, forward.job, forward.inputs["input_ids"]
    states = encoded(forward, c)
    if job.joins_samples:
        states = separate_texts(states, ids.shape[0])
    decoder, architecture = decoder_of(forward), forward.architecture
    hidden = decoder.before_head(net, c, states)
    net.tape.module = "lm_head"
    weight = net.head_weight(architecture.shape(c).vocabulary, hidden.shape[-1], architecture.is_tied(c))
    picked = ops.gathered(weight, (WORDS, hidden.shape[-1]), "weights of two words")
    logits = ops.linear(hidden, picked, None, "logits of two words", cached=False)
    del picked
    scores = ops.subtract(ops.part(logits, 1), ops.part(logits, 1), "scores")
    del logits
    net.tape.module = "loss"
    if job.loop == "trainer" and job.casts:
        scores = ops.to(scores, "fp32", "outputs converted to fp32 (accelerate)")
    last = ops.gathered(scores, (ids.shape[0], 1), "scores of the last tokens")
    del states, hidden
    return ModelOutput(losses.squared_error(last, forward.inputs["labels"]), [scores, last])
