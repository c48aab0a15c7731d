"""What follows the batch: the learning rate, and the half-life of Adam's second moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, setting
from vramplan.memory.optimizers import optimizer_of

RULES: Mapping[str, Callable[[float], float]] = {"sqrt": sqrt, "linear": lambda ratio: ratio, "none": lambda ratio: 1.0}
"""Factor of the learning rate by the ratio of the batches.

sqrt: Adam types (arXiv 2205.10287). linear: SGD (arXiv 1706.02677). none: the rate stays, for comparison.
"""


@dataclass(frozen=True, slots=True)
class Coupling:
    """How the optimizer's settings follow the batch."""

    rule: str = "sqrt"
    """One of `RULES`."""
    rewarm: int = 0
    """Samples or tokens, in the controller's unit, over which the rate goes from its former value to the new one."""
    keeps_half_life: bool = True
    """Whether beta2 is changed so that the second moment forgets by tokens instead of steps (arXiv 2507.07101)."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UnknownNameError("coupling", self.rule, RULES, f"known: {', '.join(RULES)}")
        if self.rewarm < 0:
            raise ConfigError(f"{setting('rewarm', self.rewarm)}: expected 0 or more")

    def factor(self, batch: float, base_batch: float) -> float:
        """Factor of a learning rate that was set for `base_batch`, at `batch`.

        >>> Coupling("sqrt").factor(64, 16), Coupling("linear").factor(64, 16), Coupling("none").factor(64, 16)
        (2.0, 4.0, 1.0)
        """
        return RULES[self.rule](batch / base_batch)

    def betas(self, betas: tuple[float, float], batch: float, base_batch: float) -> tuple[float, float]:
        """Adam's betas at `batch`, of those set for `base_batch`: beta2 to the power of the ratio, beta1 unchanged.

        >>> Coupling().betas((0.9, 0.999), 64, 16)
        (0.9, 0.996005996001)
        """
        beta1, beta2 = betas
        return (beta1, beta2 ** (batch / base_batch)) if self.keeps_half_life else betas


def rule_for(optimizer: str) -> str:
    """The rule of an optimizer, by transformers' name: sqrt for Adam types, linear for SGD.

    Raises:
        VramplanError: for an optimizer that vramplan does not know.
    """
    return "sqrt" if optimizer_of(optimizer).adaptive else "linear"
