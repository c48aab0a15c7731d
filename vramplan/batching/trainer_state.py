"""The sampler's settings in Trainer's checkpoints: a run goes on with the same optimizer steps, or is refused."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from vramplan.batching.sampler import TokenBudgetSampler
from vramplan.errors import ConfigError, setting


class TokenBudgetState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves the sampler's state in ``trainer_state.json`` and compares it when a run goes on.

    Trainer itself finds the optimizer step to go on with; here it is made sure that its samples are the same.
    """

    def __init__(self) -> None:
        self.saved: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """What Trainer writes."""
        return {"args": {}, "attributes": {} if self.saved is None else {"saved": self.saved}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on with the micro-batches of a checkpoint.

        Raises:
            ConfigError: its optimizer steps had other samples.
        """
        sampler = kwargs["train_dataloader"].batch_sampler
        if state.global_step and not args.ignore_data_skip:
            attributes = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
            _go_on(sampler, attributes.get("saved"))
        self.saved = sampler.state_dict()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The next training begins anew."""
        self.saved = None


def _go_on(sampler: TokenBudgetSampler, saved: Any) -> None:
    if saved is None:
        raise ConfigError(
            "the checkpoint was not saved with a budget of tokens, so its epoch cannot go on; "
            f"{setting('ignore_data_skip', True)} begins one anew"
        )
    steps = len(sampler)
    sampler.load_state_dict({**saved, "epoch": 0, "steps_done": 0})
    if len(sampler) != steps:
        raise ConfigError(
            f"the checkpoint's epochs have {len(sampler)} optimizer steps and these {steps}; set "
            f"{setting('divisible_by', sampler.divisible_by)}"
        )
