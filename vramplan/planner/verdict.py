"""Whether a configuration fits a GPU, and what would make it fit."""

from __future__ import annotations

from math import ceil

from vramplan.analytic.rollout.vllm_share import start_doubts
from vramplan.dataclass import dataclass
from vramplan.frameworks.parsed_config import (
    ParsedConfig,
)
from vramplan.inputs.gpu import Gpu
from vramplan.memory.estimate import Estimate
from vramplan.planner import dataset_limits
from vramplan.planner.batch_warnings import fewer_negatives
from vramplan.planner.gpu_groups import GroupVerdict
from vramplan.planner.search_result import LeverEffect, Plan, Search
from vramplan.planner.undecided import Case
from vramplan.result import Result


@dataclass(frozen=True, slots=True)
class Verdict(Result):
    """Whether a configuration fits a GPU, and what would make it fit."""

    reading: ParsedConfig
    card: Gpu
    estimate: Estimate
    """Of training."""
    evaluation_bytes: int | None
    """Bytes on the GPU while the configuration's evaluation batch runs; None if there is none."""
    search: Search | None
    """Plans for the same global batch if this one does not fit."""
    min_headroom: float
    """Share of the GPU that has to stay free, if that is more than the margin."""
    data: dataset_limits.DatasetLimits | None = None
    """The data set that it trains on, if one was given."""
    plan: Plan | None = None
    """Another micro-batch at the same global batch that fits if this one does not."""
    plan_bytes: int = 0
    """Bytes that the GPU needs with `plan`, at the fullest moment: training, or an evaluation."""
    advice: tuple[LeverEffect, ...] = ()
    """If no micro-batch fits: changes of something else; if another one fits: free changes that keep this one."""
    eval_batch_size: int | None = None
    """A smaller evaluation batch that fits if this one does not; 0 if none does."""
    cases: tuple[Case, ...] = ()
    """The need for each value of what the configuration does not say; this verdict is of one of them."""
    shorter_length: int | None = None
    """Tokens of samples that fit, where samples at the configuration's limit, of which this verdict is, do not."""
    open_length: bool = False
    """Whether nothing says how long the longest sample is: this verdict is of one length."""
    groups: tuple[GroupVerdict, ...] = ()
    """All groups of GPUs of the run, if it has several; this verdict is of the first that does not fit, else of the
    fullest, without vLLM's."""

    @property
    def need_bytes(self) -> int:
        """Bytes that the GPU needs at the fullest moment."""
        return max(self.estimate.device_total_bytes, self.evaluation_bytes or 0)

    @property
    def free_bytes(self) -> int:
        """Bytes of the GPU left at the fullest moment; negative if it does not fit."""
        return self.estimate.capacity_bytes - self.need_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes that have to stay free: the margin, or more if that was requested."""
        return max(self.estimate.margin_bytes, ceil(self.min_headroom * self.estimate.capacity_bytes))

    @property
    def trains(self) -> bool:
        """Whether training fits, regardless of the evaluation."""
        return self.estimate.fits and self.estimate.headroom_bytes >= self.spare_bytes

    @property
    def fits(self) -> bool:
        """Whether the fullest moment fits and leaves enough free, whatever the configuration does not say.

        On all groups of GPUs of the run.
        """
        groups = all(group.fits for group in self.groups)
        return self.case_fits and groups and all(case.fits for case in self.cases)

    @property
    def case_fits(self) -> bool:
        """The same for the case that this verdict is of."""
        return self.trains and self.free_bytes >= self.spare_bytes

    @property
    def plan_warnings(self) -> list[str]:
        """What could turn `plan`, or the nearest change, and what its smaller micro-batch changes beside memory."""
        job, nearest = self.estimate.job, self.nearest_change if self.plan is None else self.plan
        if nearest is None:
            return []
        doubts = start_doubts(nearest.estimate.notes) if isinstance(nearest, Plan) else nearest.doubts
        return [*doubts, *fewer_negatives(job, nearest.micro_batch_size, job.micro_batch_size)]

    @property
    def doubts(self) -> tuple[str, ...]:
        """What could turn a verdict that fits: that vLLM may not start."""
        return start_doubts(self.estimate.notes)

    @property
    def nearest_change(self) -> LeverEffect | None:
        """The first change of a setting that makes it fit, where no micro-batch does: the one that costs least."""
        return next((effect for effect in self.advice if effect.fits and effect.settings), None)

    @property
    def depends(self) -> bool:
        """Whether it fits for some values of what the configuration does not say, and not for others.

        Or whether it is not known of a group of GPUs.
        """
        return self.case_fits and not self.fits and all(group.fits is not False for group in self.groups)
