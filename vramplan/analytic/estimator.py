"""The analytic estimator: (model, job, GPU) to an :class:`~vramplan.memory.estimate.Estimate`, without torch."""

from __future__ import annotations

from itertools import accumulate
from threading import Lock

from vramplan.analytic.architectures.lookup import architecture_of, peft_experts_of
from vramplan.analytic.job_steps import JobSteps
from vramplan.analytic.known_shapes import KnownShapes
from vramplan.analytic.prepare import lay_out
from vramplan.analytic.train_step import declare
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import TOWER_MODULES
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate, PartialEstimate
from vramplan.memory.fused_attention import FusedAttention

MAX_JOBS = 8
"""Jobs whose simulated steps stay in memory."""
MAX_EVENTS = 1 << 24
"""Events of their timelines, of some 10 bytes each: a generation has a million or several."""


def estimate(spec: ModelSpec, job: Job, card: Gpu) -> Estimate:
    """The memory that a job needs on a GPU.

    Raises:
        VramplanError: for a job that cannot run or is not modelled.
    """
    return begin(spec, job, card).complete()


def begin(spec: ModelSpec, job: Job, card: Gpu) -> PartialEstimate:
    """Simulate the step; the allocator's replay and the rest are done by :meth:`PartialEstimate.complete`.

    Raises:
        VramplanError: for a job that cannot run or is not modelled.
    """
    return JobSteps(spec, job, card).begin(job.micro_batch_size, job.gradient_accumulation_steps, several=False)


class Estimator:
    """Estimates of many jobs, which share the simulations that they have in common."""

    def __init__(self) -> None:
        self._jobs: list[JobSteps] = []
        """The jobs of the last estimates, the latest first."""
        self._known = KnownShapes()
        self._lock = Lock()

    def __call__(self, spec: ModelSpec, job: Job, card: Gpu, several: bool = False) -> PartialEstimate:
        """The same as :func:`begin`; `several`: the job will be estimated at other batches as well."""
        steps = self._steps(spec, job, card)
        return steps.begin(job.micro_batch_size, job.gradient_accumulation_steps, several)

    def _steps(self, spec: ModelSpec, job: Job, card: Gpu) -> JobSteps:
        """The steps of a job, those of the last estimates if they are among them."""
        with self._lock:
            similar = [steps for steps in self._jobs if steps.is_similar(spec, job, card)]
            same = next((steps for steps in similar if steps.is_same(job, card)), None)
            if same is None:
                similar.sort(key=lambda steps: steps.card != card)  # on the same GPU more is alike
                same = JobSteps(spec, job, card, similar[0] if similar else None, self._known)
            others = [steps for steps in self._jobs if steps is not same]
            totals = accumulate(steps.num_events for steps in others)
            room = sum(total <= MAX_EVENTS for total in totals)
            for steps in others[max(1, min(room, MAX_JOBS - 1)) :]:
                steps.forget()
                others.remove(steps)
            self._jobs[:] = [same, *others]
            return same


SHARED = Estimator()
"""The estimator of this process: a question that was asked before is answered at once."""


def listed_layers(spec: ModelSpec) -> tuple[str, ...] | None:
    """Names of the linear layers, for frameworks that list them for PEFT; None if PEFT's all-linear means the same.

    It does not for a mixture of experts (MoE) whose stacked experts PEFT adapts by all-linear: they are not
    linear layers since transformers 5.
    """
    if not peft_experts_of(spec) or spec.model_type in TOWER_MODULES:
        return None
    architecture = architecture_of(spec).architecture
    job = Job(method="full").model_copy(update={"attention": architecture.attention[0]})
    net = declare(lay_out(spec, job, FusedAttention(flash=True))[0])
    names = {
        one.name.removesuffix(".weight")
        for one in net.tape.parameters.values()
        if one.layer is not None and len(one.shape) == 2 and one.name.endswith(".weight")
    }
    return tuple(sorted({name.rpartition(".")[2] for name in names - net.routers}))
