"""A transformers Trainer whose batch follows the run.

    trainer = AdaptiveTrainer(model, args, train_dataset=data, controller=controller)
    trainer.train()

Why this is not a callback alone. From a callback, between two optimizer steps, the learning rate and the betas can be
changed, and :class:`AdaptiveCallback` does that. The batch cannot (transformers 5.23, ``Trainer._run_epoch``): the
iterator over the batches is a local variable; the number of updates in an epoch and the batches of the last one are
computed before; ``args.gradient_accumulation_steps`` is read at each micro-batch, but compared with a count of
micro-batches since the epoch began, so that a change in the middle of an epoch steps the optimizer at the wrong
micro-batch. And no callback sees an out-of-memory.

So :class:`AdaptiveBatches`, a mix-in for Trainer and its subclasses (TRL's SFTTrainer), gives the Trainer one whole
optimizer step as its "batch", with an accumulation of 1, and runs the micro-batches inside ``training_step``. All else
is the Trainer's: clipping, logging, evaluation, checkpoints. ``num_items_in_batch`` counts the whole step, so that the
loss stays the mean over its tokens. Steps of the arguments' batch are the unit of ``max_steps``, warm-up and the
schedule: a run that grows its batch sees the same samples in fewer steps, and ``state.max_steps`` becomes the number
of steps that it had.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import Trainer

from vramplan.adaptive.batches import labels_of, tokens_of, without_labels
from vramplan.adaptive.controller import Controller
from vramplan.adaptive.gradient_norms import GradientNorms, NormPair
from vramplan.adaptive.learning_rates import LearningRates
from vramplan.adaptive.observer import Observer
from vramplan.adaptive.out_of_memory import Accumulation
from vramplan.adaptive.ranks import Ranks
from vramplan.adaptive.step_loader import MicroBatch, Step, StepLoader
from vramplan.adaptive.trainer_callback import AdaptiveCallback
from vramplan.adaptive.trainer_checks import check_arguments, check_trainer, order_of, read_state
from vramplan.errors import ConfigError, setting

if TYPE_CHECKING:
    from torch import Tensor

    Base = Any  # a Trainer, of which class is not known
else:
    Base = object


class AdaptiveBatches(Base):  # type: ignore[misc]
    """Mix-in that stands before a Trainer class: ``class MyTrainer(AdaptiveBatches, SFTTrainer): pass``.

    ``args.gradient_accumulation_steps`` is 1 from then on: the controller chooses the accumulation.

    Args:
        args, kwargs: The Trainer's.
        controller: Decides; its base batch is that of the training arguments.
        measure_every: Measure the gradients' norms in each k-th step: each second one costs at most 2 % of a step where
            it was measured (benchmarks/gradient_norms.json). A policy that needs norms is told those steps alone.
        leave_out, consecutive: As in :class:`GradientNorms`.
        decisions: A file to which each decision is added as a line of JSON, by the first process.
        record: A file to which what the controller is told is added, for ``vramplan adapt simulate``.

    Raises:
        ConfigError: if the arguments' global batch is not the controller's base batch, or for impossible settings.
        UnsupportedError: for FSDP, DeepSpeed, other parallelism than DistributedDataParallel, and
            ``auto_find_batch_size``.
    """

    def __init__(
        self,
        *args: Any,
        controller: Controller,
        measure_every: int = 2,
        leave_out: Collection[str] = (),
        consecutive: bool = False,
        decisions: str | Path | None = None,
        record: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if measure_every < 1:
            raise ConfigError(f"{setting('measure_every', measure_every)}: expected 1 or more")
        check_trainer(self)
        check_arguments(self.args, controller)
        self.args.gradient_accumulation_steps = 1
        self.controller, self.measure_every = controller, measure_every
        self.leave_out, self.consecutive = leave_out, consecutive
        self.observer = Observer(controller, Ranks(self.args.device), decisions, record)
        self._accumulation: Accumulation | None = None
        self.add_callback(AdaptiveCallback(self))

    # -- what the Trainer asks for -------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> StepLoader:
        """The steps of the run, in the order in which the Trainer's own loader would give the samples."""
        plain = super().get_train_dataloader()
        args = self.args
        options = {"num_workers": args.dataloader_num_workers, "pin_memory": args.dataloader_pin_memory}
        if args.dataloader_num_workers:
            options["prefetch_factor"] = args.dataloader_prefetch_factor
            options["persistent_workers"] = args.dataloader_persistent_workers
            options["worker_init_fn"] = plain.worker_init_fn
        self.loader = StepLoader(
            plain.dataset,
            self.controller,
            plain.collate_fn,
            epochs=args.num_train_epochs,
            max_steps=args.max_steps if args.max_steps > 0 else None,
            order=order_of(plain),
            drop_last=args.dataloader_drop_last,
            rank=args.process_index,
            world_size=args.world_size,
            **options,
        )
        return self.loader

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """As the Trainer's; room for as many steps in an epoch as the smallest batch of the ladder needs."""
        values = list(super().set_initial_training_values(args, dataloader))
        smallest = min(rung.global_batch_size for rung in self.controller.rungs)
        values[1] = values[5] = ceil(self.loader.samples_in_epoch / smallest)
        return tuple(values)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Samples of the present optimizer step."""
        return self.controller.rung.global_batch_size

    def create_scheduler(self, *args: Any, **kwargs: Any) -> LearningRates:
        """The Trainer's schedule, scaled, and moved on by samples."""
        super().create_scheduler(*args, **kwargs)
        if not isinstance(self.lr_scheduler, LearningRates):
            self.lr_scheduler: Any = LearningRates(self.optimizer, self.lr_scheduler)
        return self.lr_scheduler

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, num_train_epochs: int, checkpoint: Any, trial: Any
    ) -> tuple[int, int]:
        super()._init_training_state(max_steps, num_update_steps_per_epoch, num_train_epochs, checkpoint, trial)
        if checkpoint is None:
            return 0, 0
        state = read_state(Path(checkpoint))
        self.observer.load_state_dict(state)
        self.loader.load_state_dict(state["loader"])
        return self.loader.epoch + self.loader.is_at_end, 0  # the loader itself is at the position: nothing to skip

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Step], Any]:
        """The next optimizer step, as one batch, and the items of all of it."""
        step = next(epoch_iterator, None)
        if step is None:
            return [], None
        batches = [micro_batch.batch for micro_batch in step.micro_batches]
        if not batches:  # the other ranks count theirs together with this one
            (sample,) = self.loader.cut_again([0], 1)
            batches = [without_labels(sample.batch)]
        return [step], self._get_num_items_in_batch(batches, device)

    # -- one step ------------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Step, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of a whole optimizer step; its loss."""
        train, step, ranks = super().training_step, inputs, self.observer.ranks
        if self._accumulation is None or self._accumulation.model is not model:
            needed = self.controller.policy.needs_norms
            self.norms = GradientNorms(model, ranks, self.leave_out, self.consecutive) if needed else None
            self._accumulation = Accumulation(model, ranks, self.loader.cut_again, self.observer.smaller, self.norms)
        self.is_measured = self.norms is not None and (self.observer.steps + 1) % self.measure_every == 0
        divided_by = self._divided_by(num_items_in_batch) if self.is_measured else None

        def divisor_of(micro_batch: MicroBatch) -> float:
            return step.samples / (ranks.size * len(micro_batch.indices))

        def weight_of(micro_batch: MicroBatch) -> float:
            if divided_by is None:
                return 1 / divisor_of(micro_batch)
            return labels_of(micro_batch.batch, self._loss_shifts_labels) / divided_by

        def compute(micro_batch: MicroBatch) -> Tensor:
            self.current_gradient_accumulation_steps = divisor_of(micro_batch)
            loss: Tensor = train(model, micro_batch.batch, num_items_in_batch)
            return loss

        losses = self._accumulation.run(step.micro_batches, compute, weight_of, self.is_measured)
        loss = torch.stack(losses).sum() if losses else torch.zeros((), device=ranks.device)
        self.norm_pair: NormPair | None = None
        if self.norms is not None and self.is_measured and not self.norms.takes_clipping_norm:
            self.norm_pair = self.norms.finish(None, self._loss_scale)
        self.last_step, self.last_loss, self.lr_scheduler.base_steps = step, loss, step.base_steps
        self.own_rate = float(self.lr_scheduler.own[0]["lr"])
        # the Trainer stops, and saves, at the step that state.max_steps names
        number = self.state.global_step + 1
        self.state.max_steps = number if step.is_last else max(self.state.max_steps, number + 1)
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's; what fails later, fails in the backward."""
        outcome = super().compute_loss(*args, **kwargs)
        if self._accumulation is not None:
            self._accumulation.is_in_backward = True
        return outcome

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if self.norms is not None and self.is_measured and self.norms.takes_clipping_norm:
            self.norm_pair = self.norms.finish(norm, self._loss_scale)
        return norm

    def floating_point_ops(self, inputs: Any) -> int:
        """Of all micro-batches of a step."""
        parts = [part.batch for part in inputs.micro_batches] if isinstance(inputs, Step) else [inputs]
        return sum(super(AdaptiveBatches, self).floating_point_ops(part) for part in parts)

    def _track_num_input_tokens(self, inputs: Step) -> None:
        how = self.args.include_num_input_tokens_seen
        if how != "no":
            batches = [part.batch for part in inputs.micro_batches]
            count = sum(tokens_of(batch) if how == "non_padding" else batch["input_ids"].numel() for batch in batches)
            self.state.num_input_tokens_seen += int(self.observer.ranks.sums([float(count)])[0])

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As the Trainer's, with the global batch beside the loss."""
        if "loss" in logs:
            logs["global_batch_size"] = self.controller.rung.global_batch_size
        super().log(logs, *args, **kwargs)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _divided_by(self, num_items_in_batch: Any) -> float | None:
        """What a rank's summed losses are divided by in the end; None if a micro-batch's loss is a mean."""
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            scaled = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if not scaled or num_items_in_batch is None:
            return None
        return float(num_items_in_batch) / (self.observer.ranks.size if self.args.average_tokens_across_devices else 1)

    @property
    def _loss_scale(self) -> float:
        scaler = self.accelerator.scaler
        return 1.0 if scaler is None else float(scaler.get_scale())


class AdaptiveTrainer(AdaptiveBatches, Trainer):  # type: ignore[misc]
    """transformers' Trainer with :class:`AdaptiveBatches`."""
