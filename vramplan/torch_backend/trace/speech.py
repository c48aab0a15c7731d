"""What models of speech read back from the device, or leave to chance: CTC's labels, and the frames to replace.

A trace has no data: all labels count and are as long as they can be, and SpecAugment replaces as many frames as it may.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten
FILES = ("modeling_wav2vec2.py", "modeling_hubert.py")
"""Files of transformers whose models compare the largest label with the size of the vocabulary."""


def _select_labels(labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return labels.new_empty((labels.numel(),))


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses and alpha (cuda/LossCTC.cu: ctc_loss_gpu_template)."""
    frames, samples, _classes = log_probs.shape
    states = 2 * (targets.numel() // samples) + 1
    return log_probs.new_empty((samples,)), log_probs.new_empty((samples, frames, states))


def _ctc_loss_backward(grad: torch.Tensor, log_probs: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape)


ANSWERS: dict[Any, Callable[..., Any]] = {
    aten._ctc_loss.Tensor: _ctc_loss,
    aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
    aten._use_cudnn_ctc_loss.Tensor: lambda *_, **__: False,
}
"""Operations of CTC, whose results' shapes depend on the labels."""


def answer(func: Any) -> Callable[..., Any] | None:
    """The function that gives an operation's result on tensors without data; None for all but CTC's."""
    if func is aten.masked_select.default and _within(("loss_ctc.py",)):
        return _select_labels
    return ANSWERS.get(func)


def selects_frames(func: Any) -> bool:
    """Whether a backward selects the gradient of the frames that SpecAugment replaced."""
    node = None if torch.is_grad_enabled() else torch._C._current_autograd_node()
    return func is aten.index.Tensor and node is not None and node.name() == "IndexPutBackward0"


def compares_labels() -> bool:
    """Whether a model asks if a label is larger than its vocabulary."""
    return _within(FILES)


def _within(files: tuple[str, ...]) -> bool:
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(files):
            return True
        frame = frame.f_back
    return False


@contextmanager
def without_chance() -> Iterator[None]:
    """Inside, SpecAugment replaces the most frames that it may, side by side."""
    import numpy

    def most(shape: tuple[int, int], mask_prob: float, mask_length: int, min_masks: int = 0, **_: Any) -> Any:
        length = shape[1]
        count = min(length, mask_length * max(min_masks, int(mask_prob * length / mask_length) + 1))
        mask = numpy.zeros(shape, dtype=bool)
        mask[:, :count] = True
        return mask

    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and "_compute_mask_indices" in vars(module)
    ]
    originals: list[Any] = [module._compute_mask_indices for module in modules]
    for module in modules:
        module._compute_mask_indices = most  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module._compute_mask_indices = original  # type: ignore[attr-defined]
