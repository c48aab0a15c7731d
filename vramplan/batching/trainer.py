"""transformers' Trainer with micro-batches up to a budget of tokens, their number changing from step to step.

Trainer (5.23, ``_run_epoch``) counts micro-batches and steps the optimizer at every multiple of
``gradient_accumulation_steps``, so their number cannot change. Here its loader gives one optimizer step at a time, with
``gradient_accumulation_steps=1``, and ``training_step`` runs the micro-batches inside. Trainer's counting of steps, its
schedule, its checkpoints and its way to go on from one are then right as they are. Overridden:

    get_train_dataloader       gives a StepLoader, which accelerate does not deal out a second time
    training_step              runs one micro-batch after the other; ranks exchange gradients in the last one
    _get_num_items_in_batch    counts the labels of all micro-batches of a step; Trainer sums them over the ranks
    floating_point_ops, _track_num_input_tokens    sum over micro-batches

A callback keeps the sampler's settings in the checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader
from transformers import Trainer

from vramplan.batching.gradients import check_separated
from vramplan.batching.sampler import TokenBudgetSampler
from vramplan.batching.torch_loader import StepLoader
from vramplan.batching.trainer_state import TokenBudgetState
from vramplan.errors import ConfigError, setting


class TokenBudgetMixin:
    """Token budgets for a Trainer class: ``class MyTrainer(TokenBudgetMixin, SFTTrainer)``.

    Args:
        sampler_options: arguments of :class:`~vramplan.batching.TokenBudgetSampler`, of which ``max_tokens`` and
            ``global_tokens`` are needed. ``num_replicas``, ``rank`` and ``seed`` are Trainer's.
        lengths: tokens of each sample; by default those of its ``input_ids``.

    ``per_device_train_batch_size`` has no effect on training, and the line "Total train batch size" that Trainer logs
    does not know the sampler.

    Raises:
        ConfigError: a training argument contradicts a budget of tokens.
    """

    def __init__(
        self, *args: Any, sampler_options: dict[str, Any], lengths: Iterable[int] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sampler_options, self._lengths = sampler_options, lengths
        _check(self)
        self.add_callback(TokenBudgetState())  # type: ignore[attr-defined]

    def get_train_dataloader(self: Any) -> DataLoader:
        """Trainer's data set and collator, without the columns that the model does not take, in a StepLoader."""
        if self.train_dataset is not None and hasattr(self.train_dataset, "__len__") and not len(self.train_dataset):
            raise ConfigError("the data set is empty: there is no sample to make batches of")
        plain = super().get_train_dataloader()  # type: ignore[misc]
        dataset, args = plain.dataset, self.args
        sampler = TokenBudgetSampler(
            _lengths(dataset) if self._lengths is None else self._lengths,
            **{"seed": args.seed if args.data_seed is None else args.data_seed} | self._sampler_options,
            num_replicas=args.world_size,
            rank=args.process_index,
        )
        options = {name: getattr(plain, name) for name in _OF_WORKERS}
        return StepLoader(dataset, sampler, plain.collate_fn, **options)

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """The micro-batches of one optimizer step."""
        if num_items_in_batch is None:
            raise ConfigError(
                f"{type(self.model).__name__} takes no num_items_in_batch, or the data has no labels: its loss cannot "
                "be normalised by the tokens of a step; give labels, or a compute_loss_func that does it"
            )
        self.current_gradient_accumulation_steps = len(inputs)
        total = 0.0
        for number, micro_batch in enumerate(inputs):
            last = number == len(inputs) - 1
            check_separated(model, micro_batch)
            self.accelerator.gradient_state._set_sync_gradients(last)
            with nullcontext() if last else self._without_exchange(model):
                total = total + super().training_step(model, micro_batch, num_items_in_batch)  # type: ignore[misc]
            if not last:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        return total

    def _without_exchange(self: Any, model: Any) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self.accelerator.no_sync(model=model)
        return context

    def _get_num_items_in_batch(self: Any, batch_samples: list[Any], device: Any) -> Any:
        training = bool(batch_samples) and isinstance(batch_samples[0], list)
        flat = list(chain.from_iterable(batch_samples)) if training else batch_samples
        count = super()._get_num_items_in_batch(flat, device)  # type: ignore[misc]
        if training and count is not None and not int(count.max()):
            raise ConfigError("an optimizer step has no token to predict: all labels are ignored")
        return count

    def floating_point_ops(self: Any, inputs: Any) -> int:
        """Of all micro-batches of a step."""
        count = super().floating_point_ops  # type: ignore[misc]
        return sum(count(micro_batch) for micro_batch in inputs)

    def _track_num_input_tokens(self: Any, inputs: Any) -> None:
        for micro_batch in inputs:
            super()._track_num_input_tokens(micro_batch)  # type: ignore[misc]


class TokenBudgetTrainer(TokenBudgetMixin, Trainer):  # type: ignore[misc]
    """transformers' Trainer with a budget of tokens; see :class:`TokenBudgetMixin`."""


_OF_WORKERS = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""What of Trainer's own DataLoader is not its batches."""


def _lengths(dataset: Any) -> list[int]:
    try:
        if hasattr(dataset, "column_names"):  # of the datasets library: one column is read much faster than all
            return [len(ids) for ids in dataset["input_ids"]]
        return [len(dataset[number]["input_ids"]) for number in range(len(dataset))]
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"the lengths of the samples are not known ({type(error).__name__}: {error}): expected a data set with a "
            f"length and input_ids, or {setting('lengths')}"
        ) from error


def _check(trainer: Any) -> None:
    """Refuse what a budget of tokens contradicts."""
    args = trainer.args
    if args.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"{setting('gradient_accumulation_steps', args.gradient_accumulation_steps)}: expected 1, as the number of "
            "micro-batches follows global_tokens"
        )
    if args.auto_find_batch_size:
        raise ConfigError(f"{setting('auto_find_batch_size', True)}: has no effect on a budget of tokens; leave it out")
    if args.train_sampling_strategy != "random":
        raise ConfigError(
            f"{setting('train_sampling_strategy', args.train_sampling_strategy)}: a budget of tokens has its own; "
            "expected random"
        )
    if args.n_gpu > 1:
        raise ConfigError(
            "one process drives several GPUs (DataParallel), which would share a micro-batch; use torchrun"
        )
    if args.world_size > 1 and not args.average_tokens_across_devices:
        raise ConfigError(
            f"{setting('average_tokens_across_devices', False)}: each GPU would normalise by its own tokens; leave it "
            "True"
        )
    if trainer.is_deepspeed_enabled:
        raise ConfigError("DeepSpeed is not tested with a budget of tokens; use DDP or FSDP")
    if trainer.get_tp_size() * trainer.get_cp_size() * trainer.get_sp_size() > 1:
        raise ConfigError("tensor, context and sequence parallelism are not supported with a budget of tokens")
