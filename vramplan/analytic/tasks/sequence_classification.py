"""A label for each sample (transformers 5.23, <Model>ForSequenceClassification)."""

from __future__ import annotations

from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.tasks.encoded import encoded
from vramplan.analytic.tasks.separate_texts import separate_texts
from vramplan.inputs.model_spec import Config
from vramplan.inputs.tasks import num_labels


def forward(forward: ForwardPass, c: Config) -> ModelOutput:
    """The last states live until the class's forward returns; cross-entropy, or the squared error of one label."""
    labels = num_labels(c, forward.job)
    hidden = encoded(forward, c)
    if forward.job.joins_samples:
        logits = _of_one_row(forward, hidden, labels)
    else:
        logits = forward.architecture.heads.sequence(forward, c, hidden, labels)
    forward.tape.module = "loss"
    return ModelOutput(label_loss(logits, forward.inputs["labels"]), [logits])


def _of_one_row(forward: ForwardPass, states: Tensor, labels: int) -> Tensor:
    """Texts that share one row, scored by ms-swift (4.6, model/patcher.py: transformers_seq_cls_forward)."""
    net, rows = forward.net, forward.inputs["input_ids"].shape[0]
    separate = separate_texts(states, rows)
    logits = net.linear("score", separate, labels, head=True)
    return ops.gathered(logits, (rows, labels), "logits of the last tokens")


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """``CrossEntropyLoss()``, or ``MSELoss()`` if there is one label."""
    return losses.cross_entropy(logits, labels) if logits.shape[-1] > 1 else losses.squared_error(logits, labels)
