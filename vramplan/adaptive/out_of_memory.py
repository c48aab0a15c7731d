"""An optimizer step's micro-batches, which goes on in smaller ones if the GPU runs out of memory.

The global batch, the optimizer's states and the order of the samples stay as they are; the weight of a sample in the
step's gradient does not depend on how the step is cut. If the memory ran out in a forward, the gradients of the
micro-batches before it are whole and are kept. If it ran out in a backward, some parameters have the failed
micro-batch's gradient and others do not: this rank's part of the step begins again.

Several ranks: no rank averages gradients before all have computed theirs. DistributedDataParallel starts to average
during the last backward, and a rank that fails in it leaves the others waiting; so every backward runs without
averaging (as in ``no_sync``), one all-reduce of a flag tells whether a rank failed, and the gradients are averaged
last. The price is the overlap of communication with the last backward. (transformers' ``auto_find_batch_size`` begins
the run again instead, with 0.9 times the micro-batch and so with another global batch.)

An out-of-memory in the optimizer's own step, or while gradients are averaged, is not handled: it may have changed some
weights, and smaller micro-batches would not help.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from vramplan.adaptive.gradient_norms import GradientNorms
from vramplan.adaptive.ranks import Ranks
from vramplan.adaptive.step_loader import MicroBatch
from vramplan.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor, nn

MESSAGES = ("CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator: can't allocate memory")
"""Of RuntimeErrors that are an out-of-memory too: of cuBLAS' workspace, and of the CPU."""
FINE, IN_FORWARD, IN_BACKWARD = range(3)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


class Accumulation:
    """Adds up the gradients of an optimizer step, over micro-batches and ranks.

    Args:
        model: DistributedDataParallel if there are several ranks.
        ranks: The data-parallel ranks.
        cut_again: Numbers of samples and a micro-batch size -> those samples in such micro-batches.
        smaller: Asks for a smaller micro-batch after an out-of-memory on any rank; called on all ranks alike. Raises if
            there is none.
        norms: Measures the micro-batches' gradients; None: nothing is measured.

    Raises:
        ConfigError: if several ranks have a model that is not DistributedDataParallel.
        UnsupportedError: for a model with communication of its own (SyncBatchNorm, communication hooks).
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        cut_again: Callable[[Sequence[int], int], list[MicroBatch]],
        smaller: Callable[[], int],
        norms: GradientNorms | None = None,
    ) -> None:
        check_parallel(model, ranks)
        self.model, self.ranks, self.cut_again, self.smaller, self.norms = model, ranks, cut_again, smaller, norms
        self.parameters = [weight for weight in model.parameters() if weight.requires_grad]
        self.is_in_backward = False
        """To be set between a micro-batch's forward and its backward."""

    def run(
        self,
        micro_batches: Sequence[MicroBatch],
        compute: Callable[[MicroBatch], Tensor],
        weight_of: Callable[[MicroBatch], float],
        measured: bool = False,
    ) -> list[Tensor]:
        """Forward and backward of all micro-batches; the gradients are whole and averaged afterwards.

        Args:
            micro_batches: This rank's part of the step. Gradients must be none or zero before.
            compute: Forward and backward of one; returns what is to be known of it, such as its loss.
            weight_of: What `compute` multiplies a micro-batch's mean loss by.
            measured: Whether the gradients' norms are measured in this step.

        Returns:
            What `compute` returned for each micro-batch that counts.
        """
        waiting, results = list(micro_batches), []
        if isinstance(self.model, DistributedDataParallel) and self.model.will_sync_module_buffers():
            self.model._sync_buffers()  # DDP's broadcast of buffers, once a step and not in each forward
        while True:
            failure = FINE
            while waiting and not failure:
                result, failure = self._one(waiting[0], compute, weight_of, measured)
                if not failure:
                    waiting.pop(0)
                    results.append(result)
            if not self.ranks.largest(failure):
                break
            free_memory()
            size = self.smaller()
            if failure == IN_BACKWARD:
                waiting, results = list(micro_batches), []
                self._forget_gradients()
            waiting = self.cut_again([index for part in waiting for index in part.indices], size)
        self.ranks.average_gradients(self.parameters)
        return results

    def _one(
        self,
        micro_batch: MicroBatch,
        compute: Callable[[MicroBatch], Tensor],
        weight_of: Callable[[MicroBatch], float],
        measured: bool,
    ) -> tuple[Any, int]:
        self.is_in_backward = False
        measuring: Any = nullcontext()
        if measured and self.norms is not None:
            measuring = self.norms.micro_batch(len(micro_batch.indices), weight_of(micro_batch))
        try:
            with without_averaging(self.model), measuring:
                return compute(micro_batch), FINE
        except (RuntimeError, torch.OutOfMemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # the error's traceback holds the graph: it must be gone before memory is freed
            return None, IN_BACKWARD if self.is_in_backward else IN_FORWARD

    def _forget_gradients(self) -> None:
        for weight in self.parameters:
            weight.grad = None
        if self.norms is not None:
            self.norms.drop()


@contextmanager
def without_averaging(model: nn.Module) -> Iterator[None]:
    """DistributedDataParallel without communication: as in its ``no_sync``, and without a broadcast of buffers."""
    if not isinstance(model, DistributedDataParallel):
        yield
        return
    before = model.require_backward_grad_sync, model.require_forward_param_sync
    model.require_backward_grad_sync = False
    model.require_forward_param_sync = False
    try:
        yield
    finally:
        model.require_backward_grad_sync, model.require_forward_param_sync = before


def check_parallel(model: nn.Module, ranks: Ranks) -> None:
    """Refuse models whose ranks talk in a forward or a backward, and ranks whose weights may differ."""
    if ranks.size == 1:
        return
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(f"{ranks.size} processes, and a {type(model).__name__}: expected DistributedDataParallel")
    if model._comm_hooks:
        raise UnsupportedError("DistributedDataParallel's communication hooks: gradients are averaged without them")
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
        raise UnsupportedError("SyncBatchNorm: a rank that runs out of memory would leave the others waiting")


def free_memory() -> None:
    """Give what the failed micro-batch held, and the blocks cached for its size, back to the GPU."""
    gc.collect()
    empty_cache()


def empty_cache() -> None:
    """Give the blocks cached for another size of micro-batch back to the GPU: they would split the memory."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
