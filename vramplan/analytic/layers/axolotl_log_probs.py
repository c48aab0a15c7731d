"""axolotl's Triton kernels of log-probabilities and entropies by whole logits (0.17 to 0.19).

They replace those of TRL's trainers for every `rl:` (loaders/patch_manager.py: _apply_trl_trainer_utils_patches;
monkeypatch/trainer/utils.py: selective_log_softmax, entropy_from_logits), in front of the import of the trainers.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Grads, Tensor


def axolotl_log_probs(logits: Tensor, labels: Tensor, is_contiguous: bool) -> Tensor:
    """(B, S, 1) log-probabilities of (B, S) labels by (B, S, V) logits, which are copied if they are no one block.

    The logits are saved, with a log-sum-exp for each token; backward makes one gradient like them.
    """
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    rows = batch * length
    flat = logits if is_contiguous else ops.copy(logits, "logits copied")
    flat = flat.view(rows, vocabulary)
    like = flat.like

    def backward(grad: Tensor) -> Grads:
        return [ops.new_like(tape, like, "gradient of the logits by log-probabilities", passes=2)]

    index = tape.empty((rows, 1), "int64", "labels copied")
    node = tape.node((flat,), backward)
    log_probs = ops.output(node, tape, (rows, 1), "fp32", "log-probabilities")
    tape.save(node, flat, index, tape.empty((rows,), "fp32", "log-sum-exp per token"))
    tape.work(0, flat.num_bytes, flat.dtype)
    del flat, index
    return ops.to(log_probs, logits.dtype, "log-probabilities in the dtype of the logits").view(batch, length, 1)


def axolotl_entropies(logits: Tensor) -> Tensor:
    """(B, S) entropies by (B, S, V) logits, of which nothing is copied."""
    tape, shape = logits.tape, logits.shape[:2]
    entropy = tape.empty(shape, "fp32", "entropies in fp32")
    tape.work(0, logits.num_bytes, logits.dtype)
    return ops.to(entropy, logits.dtype, "entropy per token")
