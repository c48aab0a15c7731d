"""What a training loop counts, tells its controller, and writes of the decisions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramplan.adaptive.controller import Controller, Decision, Observation
from vramplan.adaptive.gradient_norms import NormPair
from vramplan.adaptive.out_of_memory import empty_cache
from vramplan.adaptive.ranks import Ranks
from vramplan.adaptive.record import record_line
from vramplan.errors import ConfigError

LOGGER = logging.getLogger("vramplan.adaptive")
COUNTED = ("steps", "samples", "tokens")


class Observer:
    """Counts a run's steps, samples and tokens over all ranks.

    Every number that the controller is told is a sum over the ranks, so that it decides the same on each of them.

    Args:
        controller: Is told, and decides.
        ranks: Sum up.
        decisions: A file to which rank 0 adds each decision as a line of JSON; None: none is written. Rank 0 logs them
            as well, an out-of-memory as a warning.
        record: A file to which rank 0 adds what the controller is told, a line of JSON for each step; it is what
            ``vramplan adapt simulate`` reads.
    """

    def __init__(
        self,
        controller: Controller,
        ranks: Ranks,
        decisions: str | Path | None = None,
        record: str | Path | None = None,
    ) -> None:
        self.controller, self.ranks = controller, ranks
        self.decisions = None if decisions is None else Path(decisions)
        self.record = None if record is None else Path(record)
        self.steps = self.samples = self.tokens = 0
        self._decisions: list[Decision] = []
        self.loss = float("nan")
        """Mean loss of the last step, over the samples of all ranks."""

    def count(self, loss: float, tokens: int, samples: int) -> None:
        """Add an optimizer step; a collective.

        Args:
            loss: Sum of this rank's weighted losses, which the gradients of all ranks are averaged like.
            tokens: Of this rank.
            samples: Of all ranks.
        """
        total, tokens_of_all = self.ranks.sums([loss, float(tokens)])
        self.loss = total / self.ranks.size
        self.steps, self.samples, self.tokens = self.steps + 1, self.samples + samples, self.tokens + int(tokens_of_all)

    def decide(self, learning_rate: float, norms: NormPair | None) -> None:
        """Tell the controller of the step that was counted last.

        Args:
            learning_rate: The schedule's own, in that step.
            norms: None if they were not measured, or could not be.
        """
        before = self.controller.rung
        measured = {} if norms is None else {name: getattr(norms, name) for name in NormPair.__dataclass_fields__}
        observation = Observation(
            step=self.steps,
            samples=self.samples,
            tokens=self.tokens,
            loss=self.loss,
            learning_rate=learning_rate,
            **measured,
        )
        if self.ranks.rank == 0:
            _add_line(self.record, record_line(observation))
        decision = self.controller.observe(observation)
        if self.controller.rung.micro_batch_size != before.micro_batch_size:
            empty_cache()
        self._report(decision)

    def take_decisions(self) -> tuple[Decision, ...]:
        """The decisions since the last call."""
        decisions, self._decisions = tuple(self._decisions), []
        return decisions

    def smaller(self) -> int:
        """The micro-batch size to go on with after an out-of-memory.

        Raises:
            ConfigError: if there is no smaller one.
        """
        self._report(self.controller.out_of_memory())
        return self.controller.rung.micro_batch_size

    def state_dict(self) -> dict[str, Any]:
        """The counts and the controller, as JSON has them."""
        return {"controller": self.controller.state_dict(), **{name: getattr(self, name) for name in COUNTED}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            ConfigError: if it is another policy's, or its batch is not on the ladder.
        """
        missing = [name for name in ("controller", *COUNTED) if name not in state]
        if missing:
            raise ConfigError(f"not a saved state of a training loop: {missing[0]} is missing")
        self.controller.load_state_dict(state["controller"])
        self.steps, self.samples, self.tokens = (int(state[name]) for name in COUNTED)

    def _report(self, decision: Decision | None) -> None:
        if decision is None:
            return
        self._decisions.append(decision)
        if self.ranks.rank == 0:
            level = logging.WARNING if decision.kind == "out of memory" else logging.INFO
            before, after = decision.before, decision.after
            LOGGER.log(
                level,
                "after step %d: %s; micro-batch x accumulation %d x %d instead of %d x %d",
                decision.step,
                decision.reason,
                after.micro_batch_size,
                after.gradient_accumulation_steps,
                before.micro_batch_size,
                before.gradient_accumulation_steps,
            )
            _add_line(self.decisions, decision.json_line())


def _add_line(path: Path | None, line: str) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
