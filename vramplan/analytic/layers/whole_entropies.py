"""Entropies of tokens by whole logits, as verl computes them of padded rows: without torch.compile, in fp32.

(verl 0.7.1 to 0.9.1, utils/torch_functional.py: entropy_from_logits, under torch.autocast.)
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.attention_kernels import softmax_as_it_is
from vramplan.analytic.layers.label_log_probs import log_sum_exp


def whole_entropies(logits: Tensor) -> Tensor:
    """(B, S) entropies by (B, S, V) half-precision logits: ``logsumexp(x) - sum(softmax(x) * x)``.

    Autocast converts the logits to fp32 once for the softmax and once for its logarithm's sum.
    """
    shape = logits.shape[:-1]
    probabilities = softmax_as_it_is(ops.to(logits, "fp32", "logits in fp32"))
    sums = log_sum_exp(ops.to(logits, "fp32", "logits in fp32"), shape)
    products = ops.mul(probabilities, logits, "probabilities times logits")
    of_products = ops.total(products).view(*shape)
    del products
    return ops.subtract(sums, of_products)
