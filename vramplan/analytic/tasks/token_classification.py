"""A label for each token (transformers 5.23, <Model>ForTokenClassification)."""

from __future__ import annotations

from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.layers import losses
from vramplan.analytic.tasks.encoded import encoded
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import num_labels


def forward(forward: ForwardPass, c: Config) -> ModelOutput:
    """The last states live until the class's forward returns; a cross-entropy over all tokens."""
    heads, labels = forward.architecture.heads, num_labels(c, forward.job)
    hidden = encoded(forward, c)
    logits = heads.token(forward, c, hidden, labels)
    forward.tape.module = "loss"
    rows = ops.to(logits, "fp32", "logits in fp32") if heads.fp32_tokens else logits
    rows = rows.view(rows.num_elements // labels, labels)
    return ModelOutput(losses.cross_entropy(rows, forward.inputs["labels"]), [logits])
