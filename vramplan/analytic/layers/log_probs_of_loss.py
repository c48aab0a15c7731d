"""The functions of log-probabilities and entropies by whole logits that TRL's trainers run, by the job's loss."""

from __future__ import annotations

from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.axolotl_log_probs import axolotl_entropies, axolotl_log_probs
from vramplan.analytic.layers.fused_log_probs import fused_log_probs
from vramplan.analytic.layers.label_log_probs import entropies, label_log_probs
from vramplan.inputs.job_values import Loss


def log_probs_of(loss: Loss, logits: Tensor, labels: Tensor, is_contiguous: bool) -> Tensor:
    """(B, S, 1) or (B, S) log-probabilities of labels by (B, S, V) logits."""
    if loss == "axolotl_log_probs":
        return axolotl_log_probs(logits, labels, is_contiguous)
    return (fused_log_probs if loss == "fused_log_probs" else label_log_probs)(logits, labels)


def entropies_of(loss: Loss, logits: Tensor, is_contiguous: bool) -> Tensor:
    """(B, S) entropies by (B, S, V) logits, for the metrics."""
    return axolotl_entropies(logits) if loss == "axolotl_log_probs" else entropies(logits, is_contiguous)
