"""Losses other than transformers' own: they allocate, save and free what the real ones do, and compute no numbers.

Liger's (liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py, transformers/functional.py) and Apple's
(cut_cross_entropy 25.1.1) run on Triton and TRL's (trl 1.16, fused LM head) selects tokens by value, so none of them
runs on fake tensors.
FlashAttention's cross-entropy in verl's loss (0.9.0, utils/torch_functional.py) is Triton's as well.
`sliced` and `sliced_fp32` are transformers' own before 4.49, `sections` torchtune's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vramplan.errors import MissingDependencyError, UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import FUSED_KERNELS
from vramplan.torch_backend.trace.cuda_autocast import low_dtype
from vramplan.units import ceil_div

IGNORED = -100
TRL_TOKENS, TRL_ENTRIES = 4096, 32768
"""Shape of one tile of TRL's loss: tokens, vocabulary entries."""
SECTIONS = 8
"""num_output_chunks of torchtune's CEWithChunkedOutputLoss."""


# -- transformers before 4.49 ------------------------------------------------------------------------------------------


def sliced_loss(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **_: Any) -> torch.Tensor:
    """ForCausalLMLoss of transformers 4.46 to 4.48: the shifted fp32 logits are copied (loss/loss_utils.py)."""
    logits = logits.float()
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, vocab_size), shift_labels.view(-1), ignore_index=IGNORED)


# -- torchtune ---------------------------------------------------------------------------------------------------------


def sections_loss(hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], labels: torch.Tensor) -> Any:
    """CEWithChunkedOutputLoss of torchtune 0.6.1 over the chunked_output of its TransformerDecoder."""
    logits = [head(section) for section in hidden.chunk(SECTIONS, dim=1)]
    labels = torch.hstack((labels[..., 1:], labels.new_full((len(labels), 1), IGNORED)))
    targets = [section.reshape(-1) for section in labels.chunk(SECTIONS, dim=1)]
    return sum(
        F.cross_entropy(section.reshape(-1, section.shape[-1]).float(), target, ignore_index=IGNORED, reduction="sum")
        for section, target in zip(logits, targets, strict=True)
    )


# -- Liger -------------------------------------------------------------------------------------------------------------


class Liger(torch.autograd.Function):
    """Forward computes the gradients too, chunk by chunk, and saves them."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """`hidden` (tokens, width), `weight` (vocabulary, width)."""
        (tokens, width), entries = hidden.shape, weight.shape[0]
        rows = ceil_div(tokens, ceil_div(entries, width))
        chunk = min(tokens, 1 << (rows - 1).bit_length())
        in_place = hidden.dtype == weight.dtype and low_dtype() in (None, hidden.dtype)  # _can_use_mm_out
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if hidden.requires_grad and weight.requires_grad else None
        per_token = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        counted = labels != IGNORED
        counted.sum()
        storage = torch.empty((chunk, entries), dtype=hidden.dtype, device=hidden.device) if in_place else None
        for start in range(0, tokens, chunk):
            part = hidden[start : start + chunk]
            if storage is not None:
                logits = storage[: len(part)]
                torch.mm(part, weight.t(), out=logits)
            else:
                logits = part @ weight.t()  # autocast casts this view of the weight each time
            if hidden.requires_grad:
                if in_place:
                    torch.mm(logits, weight, out=grad_hidden[start : start + chunk])
                else:
                    grad_hidden[start : start + chunk] = logits @ weight
                if grad_weight is not None:
                    _add_product(grad_weight, logits, part)
            del logits, part
        del storage
        loss = per_token.sum()
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients that forward saved, scaled in place."""
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden, grad_weight, None


def _add_product(grad_weight: torch.Tensor, logits: torch.Tensor, part: torch.Tensor) -> None:
    """``addmm(out=...)`` for half-precision products, otherwise a product that is added."""
    if logits.dtype != torch.float32:
        part = part.to(logits.dtype)
    else:
        grad_weight += torch.mm(logits.t(), part).float()


def liger_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """LigerForCausalLMLoss: labels are shifted, the hidden state is not; (batch, length, width)."""
    labels = F.pad(labels, (0, 1), value=IGNORED)
    shifted = labels[..., 1:].contiguous()
    return Liger.apply(hidden.view(-1, hidden.shape[-1]), weight, shifted.view(-1))


# -- Apple's, as axolotl's plugin uses it ----------------------------------------------------------------------------


class Cut(torch.autograd.Function):
    """LinearCrossEntropyFunction of cut_cross_entropy 25.1.1, whose kernels store no logits; `valid` holds indices."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor
    ) -> torch.Tensor:
        """`hidden` (tokens, width), `weight` (vocabulary, width)."""
        sums = torch.full((len(valid),), -torch.inf, dtype=torch.float32, device=hidden.device)
        means = torch.zeros(len(weight), dtype=torch.float32, device=hidden.device)
        dots = torch.zeros(len(valid), dtype=torch.float32, device=hidden.device)
        ctx.save_for_backward(hidden, weight, sums, labels, valid, means)
        return dots.add_(sums).sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Both gradients in the hidden states' dtype; the weight's is cast to its own."""
        hidden, weight, _sums, _labels, _valid, means = ctx.saved_tensors
        order = torch.argsort(means).to(torch.int32)  # noqa: F841
        first = torch.zeros_like(hidden)
        second = torch.zeros_like(weight, dtype=hidden.dtype) if ctx.needs_input_grad[1] else None
        return first, None if second is None else second.to(weight.dtype), None, None


def cut_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """linear_cross_entropy(..., shift=True): all labels but the first of each sample; (batch, length, width)."""
    mask = labels[..., 1:] != IGNORED
    places = torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=mask.device).to(torch.int32)
    valid = places.sum(1)
    del mask, places
    return Cut.apply(hidden.flatten(0, -2), weight, labels.flatten(), valid) / labels.numel()


# -- TRL ---------------------------------------------------------------------------------------------------------------


class Pick(torch.autograd.Function):
    """``x[mask]`` with a mask that is true everywhere: the worst case, since the real result depends on data."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Makes the positions, and copies the rows there."""
        ctx.save_for_backward(mask)
        ctx.shape = x.shape
        positions = torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=mask.device)  # noqa: F841
        return torch.empty((mask.numel(), *x.shape[mask.dim() :]), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Zeros with the rows added by index_put, which sorts its linear indices."""
        (mask,) = ctx.saved_tensors
        out = torch.zeros(ctx.shape, dtype=grad.dtype, device=grad.device)
        positions = torch.empty((mask.numel(), mask.dim()), dtype=torch.int64, device=mask.device)
        order = [torch.empty(mask.numel(), dtype=torch.int64, device=mask.device) for _ in range(3)]
        del positions, order
        return out, None


class Chunked(torch.autograd.Function):
    """ChunkedLogProbFunction: saves no logits; backward recomputes them tile by tile, with fp32 accumulators."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[Any, ...]:
        """Log-probability, entropy and whether the target is the likeliest, per token."""
        ctx.set_materialize_grads(False)
        tokens, low = hidden.shape[0], low_dtype() or hidden.dtype
        top, total, mean, square, plain, before, at_target = (
            torch.zeros(tokens, dtype=torch.float32, device=hidden.device) for _ in range(7)
        )
        tile = torch.empty((min(tokens, TRL_TOKENS), TRL_ENTRIES), dtype=low, device=hidden.device)
        for start in range(0, tokens, TRL_TOKENS):
            part = hidden[start : start + TRL_TOKENS].to(low)
            for first in range(0, weight.shape[0], TRL_ENTRIES):
                some = weight[first : first + TRL_ENTRIES]
                torch.mm(part, some.to(low).t(), out=tile[: len(part), : len(some)])
        log_z = top + torch.log(total)
        log_probs = at_target - log_z
        entropy = log_z - mean / total
        likeliest = (at_target >= top) & (at_target > before)
        ctx.save_for_backward(hidden, weight, targets, log_z, entropy)
        ctx.low = low
        ctx.mark_non_differentiable(likeliest)
        del square, plain
        return log_probs, entropy, likeliest

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[torch.Tensor | None, ...]:
        """The tile is freed after the gradients have been cast."""
        hidden, weight, _targets, _log_z, _entropy = ctx.saved_tensors
        tokens, low = hidden.shape[0], ctx.low
        wide = [
            torch.zeros(x.shape, dtype=torch.float32, device=x.device) if need else None
            for x, need in zip((hidden, weight), ctx.needs_input_grad[:2], strict=True)
        ]
        tile = torch.empty((min(tokens, TRL_TOKENS), TRL_ENTRIES), dtype=low, device=hidden.device)
        grad = grad.float().contiguous()
        for start in range(0, tokens, TRL_TOKENS):
            part = hidden[start : start + TRL_TOKENS].to(low)
            for first in range(0, weight.shape[0], TRL_ENTRIES):
                some = weight[first : first + TRL_ENTRIES].to(low)
                torch.mm(part, some.t(), out=tile[: len(part), : len(some)])
        return (*(None if w is None else w.to(x.dtype) for w, x in zip(wide, (hidden, weight), strict=True)), None)


def chunked_loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of TRL's patched forward: the last position has no label; all others count."""
    return loss_of_rows(hidden[:, :-1], weight, labels[:, 1:])


def loss_of_rows(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """TRL's loss of hidden states and labels that are aligned (shifted already)."""
    mask = labels != IGNORED
    values = Chunked.apply(Pick.apply(hidden, mask), weight, Pick.apply(labels, mask))
    scattered = [value.new_zeros(mask.shape).masked_scatter(mask, value) for value in values]
    return -scattered[0].sum() / mask.sum().clamp(min=1)


# -- verl --------------------------------------------------------------------------------------------------------------


class InPlaceCrossEntropy(torch.autograd.Function):
    """CrossEntropyLoss of flash_attn/ops/triton/cross_entropy.py with ``inplace_backward``."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of each row; logits (tokens, vocabulary)."""
        losses, sums, _others = (torch.empty(len(logits), dtype=torch.float32, device=logits.device) for _ in range(3))
        ctx.save_for_backward(logits, sums, labels)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient in the memory of the logits."""
        return ctx.saved_tensors[0], None


def log_probs_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    cross_entropy: Callable[..., Any] = InPlaceCrossEntropy.apply,
    how: str = "undivided",
    **_: Any,
) -> torch.Tensor:
    """Mean log-probability of the labels (workers/engine/fsdp); verl 0.9.0 divides copied logits by a temperature."""
    shifted = torch.roll(labels, -1).flatten()
    rows = logits.reshape(-1, logits.shape[-1])
    if how == "copied":
        rows = rows / torch.ones((shifted.numel(), 1), dtype=logits.dtype, device=logits.device)
    return cross_entropy(rows, shifted).sum() / shifted.numel()


def real_log_probs(owner: str) -> Callable[..., torch.Tensor]:
    """The same with the kernel of the package flash-attn.

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        from flash_attn.ops.triton.cross_entropy import cross_entropy_loss
    except ImportError as error:
        raise MissingDependencyError(
            f"{owner}: {setting('loss', 'log_probs')} on a GPU needs flash-attn: pip install flash-attn"
        ) from error

    def kernel(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = cross_entropy_loss(logits, labels, inplace_backward=True)[0]
        return losses

    return functools.partial(log_probs_loss, cross_entropy=kernel)


# -- use in a model ----------------------------------------------------------------------------------------------------


def use(module: nn.Module, loss: str, owner: str, on_gpu: bool = False, how: str = "undivided") -> None:
    """Replace the model's loss by another; on a GPU cut and log_probs are the real ones, which divides logits as `how`.

    Raises:
        MissingDependencyError: if cut-cross-entropy is needed and not installed.
        UnsupportedError: for models other than a causal language model of transformers.
    """
    inner: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
    if not hasattr(inner, "get_output_embeddings") or inner.get_output_embeddings() is None:
        raise UnsupportedError(f"{owner}: {setting('loss', loss)} needs a causal language model of transformers")
    if loss == "log_probs":
        inner.loss_function = functools.partial(real_log_probs(owner) if on_gpu else log_probs_loss, how=how)
        return
    if loss in ("sliced", "sliced_fp32"):
        inner.loss_function = sliced_loss
        if loss == "sliced_fp32":  # ``logits = logits.float()`` in the model
            inner.get_output_embeddings().register_forward_hook(lambda head, inputs, logits: logits.float())
        return
    fused: Callable[..., torch.Tensor] = real_cut(owner) if on_gpu and loss == "cut" else FUSED.get(loss, liger_loss)
    from transformers.modeling_outputs import CausalLMOutputWithPast

    @functools.wraps(type(inner).forward)
    def forward(self: Any, *args: Any, labels: torch.Tensor, **kwargs: Any) -> Any:
        kwargs.pop("num_items_in_batch", None)
        outputs = self.base_model(*args, **kwargs)
        if loss == "sections":
            return CausalLMOutputWithPast(loss=sections_loss(outputs[0], self.get_output_embeddings(), labels))
        return CausalLMOutputWithPast(loss=fused(outputs[0], _head(self), labels))

    inner.forward = types.MethodType(forward, inner)


FUSED = {"liger": liger_loss, "cut": cut_loss, "chunked": chunked_loss}


def real_cut(owner: str) -> Callable[..., torch.Tensor]:
    """The loss of the package cut-cross-entropy (Apple's kernels).

    Raises:
        MissingDependencyError: if it is not installed.
    """
    try:
        from cut_cross_entropy import linear_cross_entropy
    except ImportError as error:
        raise MissingDependencyError(
            f"{owner}: {setting('loss', 'cut')} on a GPU needs cut-cross-entropy: pip install cut-cross-entropy"
        ) from error
    return functools.partial(linear_cross_entropy, shift=True)


def use_liger(module: nn.Module, job: Job, owner: str, on_gpu: bool) -> None:
    """Replace the model's loss, and the layers that the job names, by those of the package liger-kernel; on a GPU.

    Raises:
        MissingDependencyError: if it is not installed.
        UnsupportedError: without a GPU, which its kernels need.
    """
    if not on_gpu:
        name = "fused_kernels" if job.fused_kernels else "loss"
        value = ",".join(job.fused_kernels) if job.fused_kernels else job.loss
        raise UnsupportedError(
            f"{owner}: {setting(name, value)}: Liger's kernels run on a GPU alone; {setting('by', 'analytic')} supports"
            " them"
        )
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise MissingDependencyError(
            f"{owner}: Liger's kernels ({setting('loss', 'liger')}, {setting('fused_kernels')}) need liger-kernel: pip"
            " install liger-kernel"
        ) from error
    inner: Any = module.get_base_model() if hasattr(module, "get_base_model") else module
    losses = {"fused_linear_cross_entropy": job.loss == "liger", "cross_entropy": job.loss == "liger_cross_entropy"}
    # what is not named False stays at Liger's default, which is False where it has no kernel for the model
    left_out = {name: False for name in FUSED_KERNELS if name not in job.fused_kernels}
    _apply_liger_kernel_to_instance(model=inner, **losses, **left_out)


def _head(model: Any) -> torch.Tensor:
    head = model.get_output_embeddings()
    saved = getattr(head, "modules_to_save", None)
    return saved["default"].weight if saved is not None else head.weight
