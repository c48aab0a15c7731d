r"""The two squared gradient norms that a gradient noise scale is estimated from, measured in a real loop.

Let g_i be the gradient of the mean loss of micro-batch i, of s_i samples, and u_i its weight in the step's gradient G
= sum of u_i g_i over the micro-batches of all ranks, with u_i summing to 1. For independent samples with gradient
variance tr S,

    E |g_i|^2 = |E g|^2 + tr S / s_i        E |G|^2 = |E g|^2 + tr S * sum of u_i^2 / s_i

(McCandlish et al., arXiv 1812.06162, appendix A.1, for micro-batches of different sizes). So the mean of the |g_i|^2
is that of a batch of the harmonic mean of s_i, and |G|^2 that of a batch of 1 / sum of u_i^2 / s_i: `small_batch` and
`large_batch`. They are b and b x accumulation x ranks if all micro-batches are alike.

How g_i is seen: a hook on each parameter gets what one backward adds to the gradient, before it is added to ``.grad``
and before DistributedDataParallel averages anything (``Tensor.register_hook`` on a leaf is a pre-hook of autograd's
AccumulateGrad node; the engine has summed all uses of the parameter by then, tied weights included). No gradient is
copied or held: of each parameter one fp32 number, a block of 512 bytes in PyTorch's allocator, until the micro-batch
ends. On the CPU, a half-precision gradient is converted to fp32 one parameter at a time. What it costs in time is one
more read of each gradient, and one small kernel for each parameter and micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from vramplan.adaptive.ranks import Ranks
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class NormPair:
    """Squared norms of the gradient at two batch sizes, the same on all ranks. NaN or infinite if a gradient was."""

    small_norm_squared: float
    small_batch: float
    """Samples; the harmonic mean of the micro-batches."""
    large_norm_squared: float
    large_batch: float
    """Samples; of the whole step."""
    biased: bool = False
    """Whether the smaller gradients are those of two consecutive steps: the weights changed between them."""


class _MicroBatch(NamedTuple):
    size: int
    weight: float
    norm_squared: Tensor


class GradientNorms:
    """Measures the norms of chosen optimizer steps; costs nothing in the others, whose hooks are removed.

    Args:
        model: Its parameters that require a gradient are measured; frozen ones are not.
        ranks: The data-parallel ranks; None: this process alone.
        leave_out: Names of parameters that are measured in neither norm.
        consecutive: For a single micro-batch on a single GPU, compare with the last measured step's gradient. The
            estimate is biased then, and a copy of all gradients is held, which the planner has not counted.

    Raises:
        ConfigError: if nothing is trained, or a name is unknown.
        UnsupportedError: for sharded parameters (FSDP, tensor parallel, ZeRO-3): a rank sees a part of each gradient.
    """

    def __init__(
        self, model: nn.Module, ranks: Ranks | None = None, leave_out: Collection[str] = (), consecutive: bool = False
    ) -> None:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        named = {name: weight for name, weight in inner.named_parameters() if weight.requires_grad}
        unknown = sorted(set(leave_out) - {name for name, _ in inner.named_parameters()})
        if unknown:
            raise ConfigError(f"leave_out: the model has no parameter {', '.join(unknown)}")
        for name, weight in named.items():
            if _is_sharded(weight):
                raise UnsupportedError(f"gradient norms: {name} is sharded; only whole gradients can be measured")
        self.parameters = {name: weight for name, weight in named.items() if name not in leave_out}
        if not self.parameters:
            raise ConfigError("gradient norms: the model has no parameter that trains")
        self.takes_clipping_norm = len(self.parameters) == len(named) and not consecutive
        """Whether :meth:`finish` may come after clipping, with its norm; else it comes before, with none."""
        self.ranks = ranks or Ranks(next(iter(self.parameters.values())).device)
        self.consecutive = consecutive
        self._previous: list[Tensor | None] | None = None
        self._norms: dict[str, Tensor] = {}
        self._micro_batches: list[_MicroBatch] = []

    @contextmanager
    def micro_batch(self, size: int, weight: float) -> Iterator[None]:
        """Measures the backward of one micro-batch.

        Args:
            size: Samples.
            weight: What the mean loss of the micro-batch was multiplied by: 1 / accumulation if all are alike. On each
                rank as its own backward sees it; the ranks' mean is then taken, as DistributedDataParallel does. With
                0, the micro-batch counts in no norm.

        Raises:
            UnsupportedError: for a sparse gradient, or a parameter whose gradient comes in parts (reentrant gradient
                checkpointing of tied weights, several backwards).
        """
        self._norms = {}
        handles = [
            parameter.register_hook(self._hook(name))
            for name, parameter in self.parameters.items()
            if parameter.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if weight:
            self._micro_batches.append(_MicroBatch(size, weight, self._sum_of_squares() / weight**2))

    def _hook(self, name: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
        def see(gradient: Tensor) -> None:
            if gradient.layout != torch.strided:
                raise UnsupportedError(f"gradient norms: {name} has a sparse gradient; name it in leave_out")
            if name in self._norms:
                raise UnsupportedError(
                    f"gradient norms: the gradient of {name} came in parts; one backward a micro-batch is measured, and"
                    " no reentrant gradient checkpointing of tied weights"
                )
            self._norms[name] = torch.linalg.vector_norm(gradient, dtype=torch.float32)

        return see

    def _sum_of_squares(self) -> Tensor:
        norms, self._norms = list(self._norms.values()), {}
        return _sum_of_squares(norms, self.ranks.device)

    def drop(self) -> None:
        """Forget the micro-batches of this step: the step begins again."""
        self._micro_batches = []

    def finish(self, total_norm: float | Tensor | None = None, loss_scale: float = 1.0) -> NormPair | None:
        """The two norms of a step whose gradients are whole, averaged over ranks, and not yet clipped.

        Args:
            total_norm: The norm of all gradients, unscaled and before clipping, as ``clip_grad_norm_`` returned it;
                None: it is computed, of gradients that are not clipped. Only where `takes_clipping_norm`.
            loss_scale: What a GradScaler had multiplied the losses by. If no `total_norm` is given, the gradients are
                taken to be multiplied still.

        Returns:
            Twice the same norm and batch if the step had one micro-batch on one rank, and there is no former gradient
            to compare with: no noise can be told from it. None if no micro-batch had a weight.

        Collective: one small all-reduce, on all ranks together.
        """
        micro_batches, self._micro_batches = self._micro_batches, []
        gradients = [weight.grad for weight in self.parameters.values()]
        norm: Tensor | float
        if total_norm is None:
            norm = norm_of(gradients, self.ranks.device) / loss_scale
        else:
            norm = total_norm
        # one transfer from the GPU for all numbers
        squares = torch.stack([entry.norm_squared for entry in micro_batches]).tolist() if micro_batches else []
        large = _square(norm)
        share = 1 / self.ranks.size
        numbers = [
            float(len(micro_batches)),
            sum(squares) / loss_scale**2,
            sum(1 / entry.size for entry in micro_batches),
            sum((entry.weight * share) ** 2 / entry.size for entry in micro_batches),
            large,
        ]
        count, small, inverse, spread, large = self.ranks.sums(numbers)
        large /= self.ranks.size
        if not count:
            return None
        if count == 1 and self.consecutive:
            previous = self._against_previous(gradients, large, micro_batches, loss_scale)
            if previous is not None:
                return previous
        return NormPair(
            small_norm_squared=small / count,
            small_batch=count / inverse,
            large_norm_squared=large,
            large_batch=1 / spread,
        )

    def _against_previous(
        self, gradients: Sequence[Tensor | None], norm_squared: float, steps: list[_MicroBatch], loss_scale: float
    ) -> NormPair | None:
        """This step's gradient and the last one's as two small ones, their mean as the large one (AdaptDL's way)."""
        before, size = self._previous, float(steps[0].size)
        now = [None if gradient is None else gradient.detach() / loss_scale for gradient in gradients]
        self._previous = now
        if before is None:
            return None
        pairs = list(zip(now, before, strict=True))
        present = [[gradient for gradient in pair if gradient is not None] for pair in pairs]
        means = [torch.stack(pair).sum(0) / 2 for pair in present if pair]
        return NormPair(
            small_norm_squared=(norm_squared + _square(norm_of(before, self.ranks.device))) / 2,
            small_batch=size,
            large_norm_squared=_square(norm_of(means, self.ranks.device)),
            large_batch=2 * size,
            biased=True,
        )


def norm_of(gradients: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """The norm of all gradients together, as a number on a device; 0 without any."""
    present = [gradient for gradient in gradients if gradient is not None]
    norms: list[Tensor] = []
    for dtype in {gradient.dtype for gradient in present}:
        norms += torch._foreach_norm([gradient for gradient in present if gradient.dtype == dtype], 2, torch.float32)
    return _sum_of_squares(norms, device).sqrt()


def _sum_of_squares(norms: list[Tensor], device: torch.device) -> Tensor:
    if not norms:
        return torch.zeros((), dtype=torch.float32, device=device)
    stacked = torch.stack([norm.to(device) for norm in norms])
    # fp64 where there is some: the square of an fp16 run's scaled norm may be beyond fp32
    return (stacked.double() if device.type != "mps" else stacked).square().sum()


def _square(norm: Tensor | float) -> float:
    return float(norm) * float(norm)  # infinite where it is too large; ** would raise


def _is_sharded(weight: nn.Parameter) -> bool:
    """DTensor (FSDP2, tensor parallel), FSDP1's FlatParameter, DeepSpeed ZeRO-3's parameters."""
    return hasattr(weight, "placements") or hasattr(weight, "_is_flat_param") or hasattr(weight, "ds_id")
