"""The controller: which rung a run is on, and when it leaves it.

It decides from what it is told, and from nothing else: ranks that are told the same decide the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.decision import Decision
from vramplan.adaptive.ladder import check_ladder
from vramplan.adaptive.loss_watch import LossWatch
from vramplan.adaptive.observation import Observation, Unit, check_unit
from vramplan.adaptive.policies.policy import Policy, Wish
from vramplan.adaptive.rung import Rung
from vramplan.errors import ConfigError, setting

__all__ = ["Controller", "Decision", "Observation"]

FORMAT = 1
"""Version of the layout of a saved state."""
BIASED = "norms of consecutive steps: the noise scale is biased"
SPIKE = "the loss jumped"


class Controller:
    """Holds a run on one rung of a ladder, and moves it when its policy asks for another batch.

    A policy that measures is followed one rung at a time, after it has asked for at least the next rung's batch
    throughout `dwell`; a policy that follows a plan is followed at once. No batch grows while the loss rises, none
    shrinks unless the policy may, and none leaves the ladder.

    Args:
        rungs: Ascending in global batch (:func:`vramplan.adaptive.ladder.ladder`); the run begins on the first.
        policy: What asks for a batch.
        coupling: How the learning rate and beta2 follow.
        dwell: Samples or tokens that a wish has to last, and that lie between two changes.
        unit: samples or tokens: of `dwell` and of the coupling's `rewarm`.
        base_batch: The global batch that learning rate and betas were set for; None: the first rung's.

    Raises:
        ConfigError: for rungs that are no ladder, and other settings that are impossible.
    """

    def __init__(
        self,
        rungs: Sequence[Rung],
        policy: Policy,
        coupling: Coupling = Coupling(),
        dwell: int = 0,
        unit: Unit = "samples",
        base_batch: int | None = None,
    ) -> None:
        check_unit(unit)
        if dwell < 0:
            raise ConfigError(f"{setting('dwell', dwell)}: expected 0 or more")
        if base_batch is not None and base_batch < 1:
            raise ConfigError(f"{setting('base_batch', base_batch)}: expected 1 or more")
        self.rungs = check_ladder(rungs)
        self.policy, self.coupling, self.dwell, self.unit = policy, coupling, dwell, unit
        self.base_batch = self.rungs[0].global_batch_size if base_batch is None else base_batch
        self.unused: dict[str, int] = {}
        """Observations that the policy was not shown, or that it could not measure with, by the reason."""
        self._index = 0
        self._micro_limit: int | None = None
        self._step = self._samples = self._tokens = self._position = 0
        self._changed_at = 0
        self._asked_since: int | None = None
        self._asks_for = 0
        self._factor_before = self._factor_after
        self._loss = LossWatch()

    # -- what the loop reads -------------------------------------------------------------------------------------------

    @property
    def rung(self) -> Rung:
        """The present way to reach the global batch."""
        rung = self._within_limit(self.rungs[self._index])
        assert rung is not None  # a rung without a way to reach it is never entered
        return rung

    @property
    def learning_rate_factor(self) -> float:
        """What the schedule's learning rate is to be multiplied by for the next step."""
        since = self._position - self._changed_at
        if since >= self.coupling.rewarm:
            return self._factor_after
        share = since / self.coupling.rewarm
        return self._factor_before + share * (self._factor_after - self._factor_before)

    def betas(self, betas: tuple[float, float]) -> tuple[float, float]:
        """Adam's betas for the next step, of those that were set for the base batch."""
        return self.coupling.betas(betas, self.rung.global_batch_size, self.base_batch)

    # -- what the loop tells -------------------------------------------------------------------------------------------

    def observe(self, observation: Observation) -> Decision | None:
        """Take in an optimizer step; a decision holds from the next step on.

        Raises:
            ConfigError: if the observation is not later than the one before.
        """
        before = self._position
        if observation.step <= self._step or observation.position(self.unit) < before:
            raise ConfigError(f"step {observation.step} was observed after step {self._step}")
        self._step, self._samples, self._tokens = observation.step, observation.samples, observation.tokens
        self._position = observation.position(self.unit)
        if not self._is_usable(observation):
            if observation.has_norms or not self.policy.needs_norms:  # a step that was not measured says nothing
                self._asked_since = None
            return None
        wish = self.policy.wish(observation, self.rung.global_batch_size)
        if wish is None:
            self._asked_since = None
            return None
        target = self._target(wish)
        direction = (target > self._index) - (target < self._index)
        if direction == 0 or (direction > 0 and self._loss.rises):
            self._asked_since = None
            return None
        if self.policy.is_measured and not self._lasted(direction, before):
            return None
        return self._move(target, wish, observation.biased)

    def out_of_memory(self) -> Decision:
        """The same global batch in smaller micro-batches, now and on every rung to come.

        Raises:
            ConfigError: if there is no smaller micro-batch at this global batch.
        """
        failed = self.rung
        limit = failed.micro_batch_size - 1
        smaller = self._within_limit(self.rungs[self._index], limit)
        if smaller is None:
            raise ConfigError(
                f"out of memory at micro-batch {failed.micro_batch_size}, and no smaller one of global batch"
                f" {failed.global_batch_size} is on the ladder"
            )
        self._micro_limit = limit
        return self._decision(
            "out of memory", failed, f"micro-batch {failed.micro_batch_size} ran out of memory",
            {"micro_batch_size": failed.micro_batch_size},
        )  # fmt: skip

    # -- between runs --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that decides what comes next, as JSON has it."""
        return {
            "format": FORMAT,
            "policy_name": self.policy.name,
            "policy": self.policy.state_dict(),
            "unit": self.unit,
            "global_batch_size": self.rung.global_batch_size,
            "base_batch": self.base_batch,
            "micro_limit": self._micro_limit,
            "step": self._step,
            "samples": self._samples,
            "tokens": self._tokens,
            "changed_at": self._changed_at,
            "asked_since": self._asked_since,
            "asks_for": self._asks_for,
            "factor_before": self._factor_before,
            "loss": self._loss.state_dict(),
            "unused": dict(self.unused),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another controller was saved, on the rung of the same global batch.

        The ladder may be that of another number of GPUs.

        Raises:
            ConfigError: if the state is of another policy, or its global batch is not on this ladder.
        """
        if state.get("format") != FORMAT:
            raise ConfigError(f"the controller's state has format {state.get('format')}; this version reads {FORMAT}")
        if state["policy_name"] != self.policy.name or state["unit"] != self.unit:
            raise ConfigError(
                f"the controller's state is of policy {state['policy_name']} in {state['unit']}, not of"
                f" {self.policy.name} in {self.unit}"
            )
        batches = [rung.global_batch_size for rung in self.rungs]
        if state["global_batch_size"] not in batches:
            raise ConfigError(
                f"the run was at global batch {state['global_batch_size']}, which these {self.rungs[0].num_gpus} GPUs'"
                f" ladder lacks: {', '.join(map(str, batches))}"
            )
        index = batches.index(state["global_batch_size"])
        if self._within_limit(self.rungs[index], state["micro_limit"]) is None:
            raise ConfigError(
                f"the run was out of memory at micro-batch {state['micro_limit'] + 1}, and no smaller one of global"
                f" batch {batches[index]} is on the ladder"
            )
        self._index, self._micro_limit = index, state["micro_limit"]
        self.policy.load_state_dict(state["policy"])
        self.base_batch = state["base_batch"]
        self._step, self._samples, self._tokens = state["step"], state["samples"], state["tokens"]
        self._position = self._samples if self.unit == "samples" else self._tokens
        self._changed_at, self._asked_since = state["changed_at"], state["asked_since"]
        self._asks_for, self._factor_before = state["asks_for"], state["factor_before"]
        self._loss.load_state_dict(state["loss"])
        self.unused = dict(state["unused"])

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _factor_after(self) -> float:
        return self.coupling.factor(self.rungs[self._index].global_batch_size, self.base_batch)

    def _is_usable(self, observation: Observation) -> bool:
        fault = observation.fault()
        if fault is None and observation.loss is not None:
            if self._loss.is_spike(observation.loss):
                fault = SPIKE
            self._loss.add(observation.loss)
        needs = self.policy.needs
        if fault is None and needs is not None and getattr(observation, needs) is None:
            fault = f"{needs.replace('_', ' ')} was not given"
        if fault is None and self.policy.needs_norms:
            fault = observation.fault_of_norms()
        for reason in (fault, BIASED if observation.biased else None):
            if reason is not None:
                self.unused[reason] = self.unused.get(reason, 0) + 1
        return fault is None

    def _target(self, wish: Wish) -> int:
        """The rung that a wish leads to, from the present one."""
        batches = [rung.global_batch_size for rung in self.rungs]
        top = self._index  # an out-of-memory may have left rungs without a way to reach them
        while top + 1 < len(batches) and self._within_limit(self.rungs[top + 1]) is not None:
            top += 1
        below = min(max(0, bisect_right(batches, wish.batch) - 1), top)
        if below >= self._index:
            return min(below, self._index + 1) if self.policy.is_measured else below
        # a measured batch between two rungs changes nothing: it would else go up and down between them
        target = max(self._index - 1, bisect_left(batches, wish.batch)) if self.policy.is_measured else below
        may_go = self.policy.may_shrink and self._within_limit(self.rungs[target]) is not None
        return target if may_go else self._index

    def _lasted(self, direction: int, before: int) -> bool:
        """Whether wishes for this direction have lasted, and the last change is long ago enough."""
        if self._asked_since is None or self._asks_for != direction:
            self._asked_since, self._asks_for = before, direction
        return self._position - max(self._asked_since, self._changed_at) >= self.dwell

    def _move(self, target: int, wish: Wish, biased: bool) -> Decision:
        before, factor = self.rung, self.learning_rate_factor
        kind = "grow" if target > self._index else "shrink"
        self._index, self._changed_at, self._asked_since = target, self._position, None
        self._factor_before = factor
        reason = f"{wish.reason} ({BIASED})" if biased else wish.reason
        return self._decision(kind, before, reason, wish.values)

    def _decision(self, kind: str, before: Rung, reason: str, values: Mapping[str, float]) -> Decision:
        return Decision(
            kind=kind,
            step=self._step,
            samples=self._samples,
            tokens=self._tokens,
            before=before,
            after=self.rung,
            learning_rate_factor=self._factor_after,
            reason=reason,
            values=dict(values),
        )

    def _within_limit(self, rung: Rung, limit: int | None = None) -> Rung | None:
        """The largest micro-batch of a rung that no out-of-memory rules out."""
        limit = self._micro_limit if limit is None else limit
        ways = (rung, *rung.alternatives)
        return next((one for one in ways if limit is None or one.micro_batch_size <= limit), None)
