"""Liger's fused loss of completions: log-probabilities by tiles of logits, and all gradients in forward.

(liger-kernel 0.8.5, chunked_loss/fused_linear_ppo.py, grpo_loss.py.) One completion at a time; tiles are of 2048 tokens
by 4096 entries of the vocabulary. torch.compile has numbers for each token alone.
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.kept_gradients import node_of_kept
from vramplan.units import DTYPE_BYTES, ceil_div

TILE = (2048, 4096)
"""Tokens by vocabulary entries."""
ROWS = 2
"""Completions that are simulated: the first and the last."""


def completion_loss(hidden: Tensor, weight: Tensor, scaled: bool) -> Tensor:
    """The loss of (B, C, H) hidden states, each of which predicts a token of a completion.

    `scaled`: the loss's gradient is not 1, so that backward multiplies the gradients that forward kept.
    """
    tape, (rows, length, width), vocabulary = hidden.tape, hidden.shape, weight.shape[0]
    likes = [one.like for one in (hidden, weight)]
    needs = [one.node is not None for one in (hidden, weight)]
    node, gradients = node_of_kept(hidden, weight, scaled)
    of_weight = tape.empty(likes[1].shape, likes[1].dtype, "gradient (kept by Liger)") if needs[1] else None
    parts: list[Tensor] = []
    with tape.no_grad():
        for number in range(min(rows, ROWS)):
            if number == ROWS - 1 and rows > ROWS:
                between = (rows - ROWS, length, width)
                parts.append(tape.empty(between, hidden.dtype, "gradients of completions between"))
            _log_probs(hidden, weight, length)
            found, one_weight = _gradients(hidden, weight, length, needs[1])
            del one_weight
            parts.append(found)
            del found
        of_hidden = tape.empty(likes[0].shape, hidden.dtype, "gradient of the hidden states (kept by Liger)")
    products = 3 + needs[1]
    results = products * rows * length * vocabulary
    moved = products * rows * ceil_div(length, TILE[0]) * vocabulary * width * DTYPE_BYTES[hidden.dtype]
    tape.product(2 * results * width, moved, hidden.dtype, results, products * rows)
    if node is not None:
        tape.keep(*(one for one in (of_hidden, of_weight) if one is not None))
        gradients.extend([of_hidden if needs[0] else None, of_weight])
    out = ops.output(node, tape, (), "fp32", "loss")
    del of_hidden, of_weight, parts
    return out


def _log_probs(hidden: Tensor, weight: Tensor, length: int) -> None:
    """``_selective_logprob_forward``: each name holds the last tile's tensor until the next one exists."""
    tape, tile = hidden.tape, (min(length, TILE[0]), TILE[1])
    logits: Tensor | None = None
    exponentials: Tensor | None = None
    for _ in range(2):
        logits, new = _tile_of_logits(hidden, tile), logits
        del new
        shifted = tape.empty(tile, "fp32", "logits less their maximum")
        exponentials, former = tape.empty(tile, "fp32", "exponentials of a tile"), exponentials
        del shifted, former
    del logits, exponentials


def _tile_of_logits(hidden: Tensor, tile: tuple[int, int]) -> Tensor:
    """``(hidden @ weight.t()).float()``."""
    own = hidden.tape.empty(tile, hidden.dtype, "tile of logits", "logits")
    return own if hidden.dtype == "fp32" else hidden.tape.empty(tile, "fp32", "tile of logits in fp32", "logits")


def _gradients(hidden: Tensor, weight: Tensor, length: int, trains: bool) -> tuple[Tensor, Tensor | None]:
    """``_selective_logprob_backward`` of one completion: accumulated in fp32, then cast."""
    tape, width, tile = hidden.tape, hidden.shape[-1], (min(length, TILE[0]), TILE[1])
    wide = tape.empty((length, width), "fp32", "gradient of the hidden states in fp32")
    wide_weight = tape.empty(weight.shape, "fp32", "gradient of the head in fp32") if trains else None
    logits: Tensor | None = None
    probabilities: Tensor | None = None
    gradient: Tensor | None = None
    for _ in range(2):
        logits, former = _tile_of_logits(hidden, tile), logits
        del former
        shifted = tape.empty(tile, "fp32", "logits less their log-sum-exp")
        probabilities, former = tape.empty(tile, "fp32", "probabilities of a tile"), probabilities
        del shifted, former
        gradient, former = tape.empty(tile, "fp32", "gradient of a tile of logits"), gradient
        del former
        part = [tape.empty((TILE[1], width), "fp32", "tile of the weight in fp32")] if weight.dtype != "fp32" else []
        part.append(tape.empty((tile[0], width), "fp32", "gradient of the hidden states by a tile"))
        del part
        if trains:
            part = [tape.empty((tile[0], width), "fp32", "hidden states in fp32")] if hidden.dtype != "fp32" else []
            part.append(tape.empty((TILE[1], width), "fp32", "gradient of a tile of the weight"))
            del part
    del logits, probabilities, gradient
    found = ops.to(wide, hidden.dtype, "gradient of a completion's hidden states")
    one_weight = None if wide_weight is None else ops.to(wide_weight, weight.dtype, "gradient of the head by a row")
    del wide, wide_weight
    return found, one_weight
