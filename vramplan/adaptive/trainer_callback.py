"""The part of an adaptive Trainer that a callback can do: observe, decide, set the learning rate, and save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramplan.adaptive.batches import tokens_of
from vramplan.adaptive.trainer_checks import write_state
from vramplan.errors import MissingDependencyError

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError(
        'vramplan.adaptive.trainer needs transformers: pip install "vramplan[probe]"'
    ) from error


class AdaptiveCallback(TrainerCallback):  # type: ignore[misc]
    """Tells the controller of each optimizer step, sets what it decides, and saves it beside each checkpoint.

    :class:`AdaptiveBatches` adds it; it has no use without.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the rates and betas of the first step."""
        self.trainer.lr_scheduler.apply(self.trainer.controller)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Observe, decide, and set the rates and betas of the next step."""
        trainer, observer = self.trainer, self.trainer.observer
        state.epoch = trainer.loader.epochs_seen
        step = trainer.last_step
        observer.count(
            float(trainer.last_loss), sum(tokens_of(part.batch) for part in step.micro_batches), step.samples
        )
        if trainer.is_measured or trainer.norms is None:
            observer.decide(trainer.own_rate, trainer.norm_pair)
        trainer.lr_scheduler.apply(trainer.controller)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save what the Trainer does not know."""
        if args.should_save:
            saved = {**self.trainer.observer.state_dict(), "loader": self.trainer.loader.state_dict()}
            write_state(Path(args.output_dir) / f"checkpoint-{state.global_step}", saved)
