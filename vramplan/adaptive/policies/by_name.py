"""Policies by name, with defaults that follow from the first batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vramplan.adaptive.observation import Unit
from vramplan.adaptive.policies.constant import Constant
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.policies.norm_test import NormTest
from vramplan.adaptive.policies.plateau import Plateau
from vramplan.adaptive.policies.policy import Policy
from vramplan.adaptive.policies.schedule import Schedule
from vramplan.adaptive.policies.seesaw import Seesaw
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError

STEPS = 100
"""Steps at the first batch that a half-life and a dwell last by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What policies are made with; each takes what concerns it."""

    half_life: int
    """Of the noise scale's averages, and by default how often the plateau rule is asked; in `unit`."""
    unit: Unit = "samples"
    share: float = 1.0
    """Of the noise scale."""
    eta: float = 0.5
    """Of the norm test."""
    may_shrink: bool = False
    """Whether the noise scale may make the batch smaller."""
    points: Sequence[tuple[int, int]] = ()
    """Of the schedule."""
    interval: int | None = None
    """Of the plateau rule."""
    smallest: int = 1
    largest: int = 1
    """Of the plateau rule: the ladder's ends."""


def _schedule(settings: Settings) -> Policy:
    if not settings.points:
        raise ConfigError("the policy schedule needs its points, such as 0:32,1000000:64")
    return Schedule(settings.points, settings.unit)


_MAKERS: Mapping[str, Callable[[Settings], Policy]] = {
    "noise-scale": lambda s: NoiseScalePolicy(s.half_life, s.unit, s.share, may_shrink=s.may_shrink),
    "norm-test": lambda s: NormTest(s.eta),
    "seesaw": lambda s: Seesaw(),
    "schedule": _schedule,
    "plateau": lambda s: Plateau(s.interval or s.half_life, s.smallest, s.largest, s.unit),
    "constant": lambda s: Constant(),
}
POLICIES = tuple(_MAKERS)


def policy_by_name(name: str, settings: Settings) -> Policy:
    """A new policy.

    Raises:
        UnknownNameError: with the nearest names.
        ConfigError: for settings that the policy refuses.
    """
    if name not in _MAKERS:
        raise UnknownNameError("policy", name, POLICIES, f"known: {', '.join(POLICIES)}")
    return _MAKERS[name](settings)
