"""Log-probabilities of labels by FlashAttention's cross-entropy: verl's, which overwrites logits, and OpenRLHF's."""

from __future__ import annotations

from weakref import ReferenceType, ref

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Node, Tensor


def log_probs_loss(logits: Tensor) -> Tensor:
    """The mean log-probability of the labels by (B, S, V) logits in their own dtype (verl 0.9.0).

    Logits are divided by a temperature for each token into a new tensor (workers/engine/fsdp/transformer_impl.py:
    prepare_model_outputs), whose memory the cross-entropy's backward uses for its gradient (utils/torch_functional.py:
    logprobs_from_logits; flash-attn 058ad35, flash_attn/ops/triton/cross_entropy.py: CrossEntropyLoss). The logits
    themselves are not saved; the model's output names them until the forward is over.
    """
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    rows, undivided = (batch * length, vocabulary), logits.like
    own: list[ReferenceType[Node]] = []

    def division_backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, undivided, "gradient of the logits", passes=1)]

    def loss_backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * num_bytes, divided_like.dtype)
        node = own[0]()
        assert node is not None
        return [Tensor(tape, node.saved[-1], *divided_like)]

    temperature = tape.empty((batch * length, 1), logits.dtype, "temperature of each token")
    node = tape.node((logits,), division_backward)
    tape.save(node, temperature)
    tape.work(0, 2 * logits.num_bytes, logits.dtype)
    divided = ops.output(node, tape, rows, logits.dtype, "logits divided by the temperature")
    divided_like, num_bytes = divided.like, divided.num_bytes
    labels = tape.empty((batch * length,), "int64", "shifted labels")
    loss_node = tape.node((divided,), loss_backward)
    own += [] if loss_node is None else [ref(loss_node)]
    per_token = [tape.empty((batch * length,), "fp32", "log-probabilities per token") for _ in range(2)]
    sums = tape.empty((batch * length,), "fp32", "log-sum-exp per token")
    tape.work(0, divided.num_bytes, divided.dtype)
    tape.save(loss_node, labels, sums, divided)
    out = ops.output(loss_node, tape, (), "fp32", "loss")
    del per_token, sums, labels, divided, temperature
    return out


def kept_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S) log-probabilities by (B, S, V) fp32 logits, saved for backward (OpenRLHF 0.11.2, models/utils.py).

    FlashAttention's cross-entropy writes their gradient into a tensor of its own unless it is told otherwise.
    """
    tape, (batch, length, _), like = logits.tape, logits.shape, logits.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits", passes=2)]

    node = tape.node((logits,), backward)
    sums, squares = (tape.empty((batch * length,), "fp32", what) for what in ("log-sum-exp per token", "z losses"))
    tape.work(0, logits.num_bytes, logits.dtype)
    tape.save(node, logits, sums, labels)
    out = ops.output(node, tape, (batch, length), "fp32", "log-probabilities per token")
    del sums, squares
    return out
