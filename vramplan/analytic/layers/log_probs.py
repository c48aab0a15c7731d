"""Log-probabilities of labels by FlashAttention's cross-entropy: verl's, which overwrites logits, and OpenRLHF's."""

from __future__ import annotations

from weakref import ReferenceType, ref

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Node, Tensor
from vramplan.analytic.autograd.ops import new_like


def log_probs_loss(logits: Tensor, how: str) -> Tensor:
    """The mean log-probability of the labels by (B, S, V) logits in their own dtype; `how` as of :func:`divided`."""
    return _cross_entropy(divided(logits, how), (), "loss")


def divided(logits: Tensor, how: str) -> Tensor:
    """(B, S, V) logits divided by the temperature, as rows of V (:class:`vramplan.inputs.verl.Verl`).

    (verl 0.9.1, workers/engine/fsdp/transformer_impl.py: prepare_model_outputs.) The logits themselves are not saved;
    the model's output names them until the forward is over.
    """
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    rows, undivided = (batch * length, vocabulary), logits.like
    if how == "undivided":
        return logits.view(*rows)
    if how == "in_place":
        return ops.scale_reshaped(logits, *rows)

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, undivided, "gradient of the logits", passes=1)]

    temperature = tape.empty((batch * length, 1), logits.dtype, "temperature of each token")
    node = tape.node((logits,), backward)
    tape.save(node, temperature)
    tape.work(0, 2 * logits.num_bytes, logits.dtype)
    return ops.output(node, tape, rows, logits.dtype, "logits divided by the temperature")


def token_log_probs(logits: Tensor, labels: Tensor | None = None, in_place: bool = True) -> Tensor:
    """(N,) log-probabilities by (N, V) logits; `in_place`: backward takes their memory for their gradient."""
    return _cross_entropy(logits, (logits.shape[0],), "log-probabilities per token", labels, in_place)


def token_entropies(logits: Tensor) -> Tensor:
    """(N,) entropies by (N, V) logits, of code that torch.compile makes: it keeps the logits and numbers of each row.

    (verl 0.7.1 to 0.9.1, utils/torch_functional.py: entropy_from_logits.) Backward writes one tensor like the logits.
    """
    tape, rows, like = logits.tape, logits.shape[0], logits.like

    def backward(grad: Tensor) -> Grads:
        return [new_like(tape, like, "gradient of the logits by entropies", passes=2)]

    node = tape.node((logits,), backward)
    highest, sums = (tape.empty((rows, 1), "fp32", what) for what in ("highest logit per token", "sums per token"))
    scale = tape.empty((rows, 1), like.dtype, "log-sum-exp per token")
    tape.work(0, 2 * logits.num_bytes, like.dtype)
    tape.save(node, logits, highest, sums, scale)
    out = ops.output(node, tape, (rows,), like.dtype, "entropies per token")
    del highest, sums, scale
    return out


def _cross_entropy(
    logits: Tensor, shape: tuple[int, ...], what: str, labels: Tensor | None = None, in_place: bool = True
) -> Tensor:
    """FlashAttention's cross-entropy with ``inplace_backward`` (utils/torch_functional.py: logprobs_from_logits).

    (flash-attn 058ad35, flash_attn/ops/triton/cross_entropy.py: CrossEntropyLoss.)
    """
    tape, rows, like, num_bytes = logits.tape, logits.shape[0], logits.like, logits.num_bytes
    own: list[ReferenceType[Node]] = []

    def backward(grad: Tensor) -> Grads:
        tape.work(0, 2 * num_bytes, like.dtype)
        node = own[0]()
        assert node is not None
        if not in_place:
            return [new_like(tape, like, "gradient of the logits", passes=1)]
        return [Tensor(tape, node.saved[-1], *like)]

    if labels is None:
        labels = tape.empty((rows,), "int64", "shifted labels")
    node = tape.node((logits,), backward)
    own += [] if node is None else [ref(node)]
    per_token = [tape.empty((rows,), "fp32", "log-probabilities per token") for _ in range(2)]
    sums = tape.empty((rows,), "fp32", "log-sum-exp per token")
    tape.work(0, num_bytes, like.dtype)
    tape.save(node, labels, sums, logits)
    out = ops.output(node, tape, shape, "fp32", what)
    del per_token, sums, labels, logits
    return out


def kept_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, S) log-probabilities by (B, S, V) fp32 logits, saved for backward (OpenRLHF 0.11.2, models/utils.py).

    FlashAttention's cross-entropy writes their gradient into a tensor of its own unless it is told otherwise.
    """
    tape, (batch, length, _), like = logits.tape, logits.shape, logits.like

    def backward(grad: Tensor) -> Grads:
        made = new_like(tape, like, "gradient of the logits", passes=2)
        return [made.view(*like.shape)]  # of rows, of which another gradient makes a sum of its own

    node = tape.node((logits,), backward)
    sums, squares = (tape.empty((batch * length,), "fp32", what) for what in ("log-sum-exp per token", "z losses"))
    tape.work(0, logits.num_bytes, logits.dtype)
    tape.save(node, logits, sums, labels)
    out = ops.output(node, tape, (batch, length), "fp32", "log-probabilities per token")
    del sums, squares
    return out


def compiled_entropies(logits: Tensor) -> Tensor:
    """(B, S) entropies by (B, S, V) logits, which torch.compile saves with three numbers for each row.

    (OpenRLHF 0.11, models/utils.py: compute_entropy.) Its kernels hold no logits of their own; the backward makes one
    gradient.
    """
    tape, shape, like = logits.tape, logits.shape[:2], logits.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits by their entropies", passes=2)]

    node = tape.node((logits,), backward)
    sums = [tape.empty(shape, "fp32", "sums for the entropies") for _ in range(3)]
    tape.work(0, logits.num_bytes, logits.dtype)
    tape.save(node, logits, *sums)
    out = ops.output(node, tape, shape, "fp32", "entropies per token")
    del sums
    return out
