"""The training steps of one job on one kind of GPU, at any batch: their timelines, evaluations and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from vramplan.analytic.batch_scaling import BatchScaling, StepAt
from vramplan.analytic.known_shapes import KnownShapes, Shape, are_alike
from vramplan.analytic.layer_folding import Unfolded, unfold
from vramplan.analytic.layers.lora_targets import check_saved
from vramplan.analytic.layers.moe_peft import FORMER
from vramplan.analytic.mixed_batches import BatchShape, Pieces, mixed
from vramplan.analytic.prepare import fused_kernels, prepare
from vramplan.analytic.rollout.openrlhf_critic import Critic, critic_job, critic_of
from vramplan.analytic.rollout.phases import Generated, rollout_size
from vramplan.analytic.rollout.reward_model import check_vocabulary, reward_notes
from vramplan.analytic.rollout.vllm_share import check_share
from vramplan.analytic.run_timeline import SimulatedRun, evaluation_bytes
from vramplan.analytic.step_record import StepRecord
from vramplan.analytic.supported_adapters import check_adapters, check_mixture, mixture_notes
from vramplan.analytic.unfolded_step import Step, describe_in, is_brief, micro_steps, no_cycle_collection
from vramplan.analytic.value_model import value_model_of
from vramplan.dataclass import dataclass
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.load import OTHER_MODELS, load_other_model, names_setting, other_models
from vramplan.inputs.model_inputs import describe as describe_inputs
from vramplan.inputs.model_inputs import trained_as
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.inputs.sample_lengths import step_lengths
from vramplan.inputs.teachers import teacher_of
from vramplan.inputs.validation import check_job
from vramplan.memory.estimate import Estimate, PartialEstimate, SimulatedStep, fullest
from vramplan.memory.optimizers import check_weights, optimizer_seconds
from vramplan.memory.overheads import cublas_workspace, outside_bytes
from vramplan.memory.summarize import summarize
from vramplan.memory.timeline import Storage, Timeline
from vramplan.step_time.communication import Communication
from vramplan.step_time.kernels import Kernels, Runs, flops, micro_step_seconds
from vramplan.step_time.rates import rates_of
from vramplan.step_time.step_time import ComputeTime

VERSIONS = "torch 2.13, transformers 5.23, peft 0.21"
"""The versions that the architectures mirror."""
VERSIONS_LINEAR_EXPERTS = "torch 2.13, transformers 5.23 with the mixtures of 4.57, peft 0.21"
MAX_BATCHES = 16
"""Batches of a job whose estimates, and steps, stay in memory."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What all steps of a job have in common, whatever the batch."""

    num_parameters: int
    num_vision_parameters: int
    num_trainable_parameters: int
    num_trained: int
    """Number of tensors that the optimizer updates."""
    trained_bytes: int
    """Of all GPUs together."""
    num_weights: int
    """Number of all weights."""
    gathered_bytes: int
    """Highest bytes of sharded weights that are gathered at a time in a forward without gradients."""
    notes: tuple[str, ...]
    """Notes on the job, which fits the model's layers."""


class _Common:
    """What the steps of one job have in common on GPUs that they do not depend on."""

    def __init__(self) -> None:
        self.shapes: dict[tuple[int, int, int], Shape] = {}
        self.evaluations: dict[tuple[int, int], Unfolded] = {}
        self.weights: Weights | None = None
        self.generated = Generated()


class JobSteps:
    """The training steps of one job on one kind of GPU, at any batch."""

    def __init__(
        self,
        spec: ModelSpec,
        job: Job,
        card: Gpu,
        similar: JobSteps | None = None,
        known: KnownShapes | None = None,
    ) -> None:
        """Check a job and lay its model out.

        Args:
            spec: the model.
            job: the job; its batch does not matter.
            card: the GPU.
            similar: the same job on another GPU, with which it shares what does not depend on the GPU, or on the same.
            known: timelines of other jobs, some of which may be this one's too.

        Raises:
            VramplanError: for a job that cannot run or is not modelled.
        """
        self.spec, self.job, self.card = spec, job, card
        self._others = _others(job)
        self.setting, self.plan, self.notes = prepare(spec, job, card)
        if is_colocated(job):
            self.notes = [*self.notes, *check_share(spec, job, card)]
        if job.verl.critic is not None:
            from vramplan.analytic.verl_critic import check_critic

            check_critic(spec, job)
        if job.reward_model is not None:
            self.notes = [*self.notes, *reward_notes(job, card), *check_vocabulary(self.setting, job, card)]
        self.critic: JobSteps | None = None
        if job.openrlhf.critic is not None:
            critic = load_other_model("critic", job.openrlhf.critic)
            with names_setting("critic", critic.name):
                self.critic = JobSteps(critic, critic_job(job), card)
        self.scaling: BatchScaling = BatchScaling(self.setting, self.plan) if similar is None else similar.scaling
        shares = similar is not None and (similar.card == card or not depends_on_size(job))
        self._common: _Common = similar._common if similar is not None and shares else _Common()
        self._known = KnownShapes() if known is None else known
        self._begun: dict[tuple[int, int], PartialEstimate] = {}
        self._of_length: dict[int, JobSteps] = {}
        self._pieces: dict[int, Pieces] = {}

    def is_similar(self, spec: ModelSpec, job: Job, card: Gpu) -> bool:
        """Whether another job's storages are simulated alike: what differs is the batch, the GPU's size, the cache."""
        alike = with_batch(self.job, job.micro_batch_size, job.gradient_accumulation_steps)
        return (
            self.spec == spec
            and self._others == _others(job)
            and self.setting.device_map is None
            and fused_kernels(spec, card) == self.setting.fused
            and all(
                other is None or step is None or fused_kernels(other, card) == step.fused
                for other, step in (
                    (teacher_of(job), self.setting.teacher),
                    (value_model_of(job), self.setting.values),
                )
            )
            and alike.model_copy(update={"expandable_segments": job.expandable_segments}) == job
        )

    def is_same(self, job: Job, card: Gpu) -> bool:
        """Whether a similar job differs in the batch alone."""
        return self.card == card and self.job.expandable_segments == job.expandable_segments

    @property
    def num_events(self) -> int:
        """Events of the timelines that are in memory; those that similar jobs share are counted for each."""
        return sum(shape.run.num_events for shape in self._common.shapes.values())

    def forget(self) -> None:
        """Give up the estimates that were begun, which hold the steps that hold them."""
        self._begun.clear()

    def begin(self, micro: int, steps: int, several: bool = True) -> PartialEstimate:
        """The lower bound at a batch, from which the estimate is completed; `several`: others will be asked for.

        Raises:
            VramplanError: for a job that cannot run or is not modelled.
        """
        batch = micro, steps
        begun = self._begun.get(batch)
        if begun is None:
            if len(self._begun) == MAX_BATCHES:
                del self._begun[next(iter(self._begun))]
            begun = self._begun[batch] = self._begin(micro, steps, several)
        return begun

    def _begin(self, micro: int, steps: int, several: bool) -> PartialEstimate:
        job = with_batch(self.job, micro, steps)
        check_job(job, self.card)
        with no_cycle_collection():
            at = self.scaling.step(micro, steps, several).on(self.card)
            shape = self.shape(at, job)
            if job.lengths is None:
                first = shape.run.gpus if self.setting.device_map is not None else shape.run.gpus[:1]
                timelines = self._timelines(at, shape, first)  # that is enough for a lower bound
            else:
                steps_of = [[BatchShape(micro, length) for length in lengths] for lengths in step_lengths(job)]
                timelines = self._mixed(steps_of, job, several)
            peaks = {gpu: timeline.peak_bytes(with_kernels=False) for gpu, timeline in timelines.items()}
        lower_bound_bytes = max(peaks.values()) + outside_bytes(job, self.card)

        @cache
        def complete() -> Estimate:
            with no_cycle_collection():
                evaluations = self._evaluation_bytes(micro, several)
                others = [gpu for gpu in shape.run.gpus if gpu not in timelines]
                estimates = {}
                for gpu, timeline in (timelines | self._timelines(at, shape, others)).items():
                    evaluation = evaluations[shape.run.layout(gpu).device]
                    simulated = self._simulated(at, shape, job, timeline, evaluation)
                    estimates[gpu] = summarize(simulated, self.spec.name, job, self.card, peaks.get(gpu))
            most = fullest(estimates.values())
            if self.setting.device_map is None:
                return most
            from vramplan.analytic.strategies.device_map_layers import contents, with_shares

            return with_shares(most, estimates, contents(self.setting, self.plan))

        return PartialEstimate(
            lower_bound_bytes,
            complete,
            timelines,
            lambda on: self._compute(at, shape, on),
            _communication(shape),
        )

    def buffer_sizes(self, micro: int, steps: int, gpu: Gpu) -> tuple[int, ...]:
        """Distinct sizes, in bytes, of the buffers of kernels on a GPU at a batch."""
        with no_cycle_collection():
            return self.scaling.step(micro, steps).buffer_sizes(gpu)

    def timelines(
        self, micro: int, steps: int, gpu: Gpu | None = None, numbers: Sequence[int] | None = None
    ) -> dict[int, Timeline]:
        """Timelines at a batch by number of the GPU.

        Args:
            micro: the micro-batch.
            steps: micro-batches of an optimizer step.
            gpu: another kind of GPU, which runs the same kernels.
            numbers: of some GPUs alone.

        Raises:
            VramplanError: for a job that cannot run or is not modelled.
        """
        job = with_batch(self.job, micro, steps)
        with no_cycle_collection():
            at = self.scaling.step(micro, steps).on(gpu or self.card)
            shape = self.shape(at, job)
            return self._timelines(at, shape, shape.run.gpus if numbers is None else numbers)

    def mixed(self, steps: Sequence[Sequence[BatchShape]], empties_cache: bool = False) -> dict[int, Timeline]:
        """Timelines of optimizer steps of micro-batches that differ in shape, by number of the GPU.

        Args:
            steps: the micro-batches of each optimizer step.
            empties_cache: whether ``torch.cuda.empty_cache()`` is called before a step of another shape.
        """
        with no_cycle_collection():
            return self._mixed(steps, self.job, True, empties_cache)

    def shape(self, at: StepAt, job: Job) -> Shape:
        """What a step has in common with those of other micro-batches.

        Small tensors are left out of some layers (:func:`vramplan.analytic.layer_folding.unfold`), so steps are alike
        if they have as many of them.
        """
        common, key = self._common, (id(at.record), at.num_small if is_brief(job) else 0, rollout_size(job))
        if key not in common.shapes:
            shape = self._known_shape(at, job)
            if common.weights is None:
                common.weights = self._checked(shape.run.step, shape.run)
            if len(common.shapes) == MAX_BATCHES:
                del common.shapes[next(iter(common.shapes))]
            common.shapes[key] = shape
        return common.shapes[key]

    def _add_critic(self, step: Step) -> None:
        """Lay out the critic of a job that has one, once for all batches."""
        critics = self._common.generated.critics
        if step.job.verl.critic is not None and self.card.name not in critics:
            from vramplan.analytic.verl_critic import critic_phases

            critics[self.card.name] = critic_phases(step)

    def _similar_run(self, step: Step) -> SimulatedRun | None:
        """The run of another batch whose step has the same events, of a job that generates completions."""
        if not step.job.generates_completions:
            return None
        own = step.unfolded
        for shape in reversed(self._common.shapes.values()):
            other = shape.run.step.unfolded
            if own.events == other.events and own.source == other.source and are_alike(shape.record, step.record):
                return shape.run
        return None

    def _known_shape(self, at: StepAt, job: Job) -> Shape:
        """A shape that is known from a job with other lengths, or a new one."""
        setting = replace(self.setting, job=job)
        varies = job.generates_completions or setting.device_map is not None  # with lengths, in more than sizes
        small = at.small if is_brief(job) else b""
        rest = (self.spec, *self._others), setting.fused, self.card if depends_on_size(job) else None, small
        shape = None if varies else self._known.find(job, rest, at.record)
        if shape is None:
            step = Step(setting, self.plan, self.card, record=at.record, sizes=at.sizes)
            self._add_critic(step)
            run = SimulatedRun(step, self._common.generated, self._critic(job), self._similar_run(step))
            shape = Shape(at.record, step.unfolded.section_of, run, *step.kernels())
            if not varies:
                self._known.add(job, rest, shape)
        return shape

    def _critic(self, job: Job) -> Critic | None:
        """What OpenRLHF's critic takes beside the actor at a batch; None without one."""
        if self.critic is None:
            return None
        batch = job.micro_batch_size, job.gradient_accumulation_steps
        alone, own = self.critic.begin(*batch).complete(), self.critic.timelines(*batch, numbers=[0])[0]
        reserved = alone.device_total_bytes - outside_bytes(self.critic.job, self.card)
        return critic_of(own, reserved, offloads=job.offload != "none")

    @property
    def weights(self) -> Weights:
        """What all steps of the job have in common; known once there is one."""
        assert self._common.weights is not None
        return self._common.weights

    def _timelines(self, at: StepAt, shape: Shape, gpus: Iterable[int]) -> dict[int, Timeline]:
        """The timelines of some GPUs."""

        def described(number: int) -> Storage:
            return describe_in(self.setting, shape.record, shape.section_of, number, at.storage(number))

        workspace = cublas_workspace(self.card)
        return {gpu: shape.run.layout(gpu).timeline(at.rounded, described, workspace) for gpu in gpus}

    def _mixed(
        self, steps: Sequence[Sequence[BatchShape]], job: Job, several: bool, empties_cache: bool = False
    ) -> dict[int, Timeline]:
        """Timelines of optimizer steps of these micro-batches, by number of the GPU."""

        @cache
        def timelines(batch: BatchShape) -> dict[int, Timeline]:
            of_length = self._of_length.get(batch.length)
            if of_length is None:
                shorter = self.job.model_copy(update={"sequence_length": batch.length})
                of_length = self._of_length[batch.length] = JobSteps(self.spec, shorter, self.card, known=self._known)
            step = of_length.scaling.step(batch.samples, job.gradient_accumulation_steps, several).on(self.card)
            at_batch = with_batch(of_length.job, batch.samples, job.gradient_accumulation_steps)
            shape = of_length.shape(step, at_batch)
            return of_length._timelines(step, shape, shape.run.gpus)

        def on(gpu: int) -> Callable[[BatchShape], Timeline]:
            return lambda batch: timelines(batch)[gpu]

        numbers = timelines(steps[0][0]).keys()
        return {gpu: mixed(on(gpu), steps, micro_steps(job), self._pieces, empties_cache) for gpu in numbers}

    def _checked(self, step: Step, run: SimulatedRun) -> Weights:
        """What all steps of the job have in common.

        Raises:
            VramplanError: if the job does not fit the model's layers.
        """
        job, record, pattern = self.job, step.record, self.setting.peft_experts
        check_mixture(job, record.routers, self.card.runs_flash, pattern)
        layers, modules = linear_names(record, pattern), saved_names(record)
        notes = check_adapters(job, record.widths, layers, {*modules, *record.routers}, pattern)
        notes += check_saved(job.modules_to_save or (), record.widths, modules, layers)
        check_weights(job, ((weight.name, weight.shape) for weight in step.trained))
        notes += mixture_notes(self.spec, job, record.routers, pattern)
        return Weights(
            step.num_parameters,
            step.num_vision_parameters,
            sum(weight.num_elements for weight in step.trained),
            len(step.trained),
            sum(weight.num_bytes for weight in step.trained),
            len(step.placed),
            run.gathered_bytes,
            (*self.notes, *notes, *count_notes(self.spec, job, step.num_parameters)),
        )

    def _evaluation_bytes(self, micro: int, several: bool) -> dict[int, int]:
        """Highest bytes of a forward without gradients beside the model and its states, by GPU of a process."""
        at = self.scaling.evaluation(micro, several).on(self.card)
        evaluations, key = self._common.evaluations, (id(at.record), at.num_small)
        if key not in evaluations:
            evaluations[key] = unfold(at.record, self.plan, at.sizes, brief=True)
        peaks = evaluation_bytes(evaluations[key], at.rounded, self.setting.placement.gpus)
        return {gpu: peak + self.weights.gathered_bytes for gpu, peak in peaks.items()}

    def _simulated(
        self, at: StepAt, shape: Shape, job: Job, timeline: Timeline, evaluation_bytes: int
    ) -> SimulatedStep:
        setting = self.setting
        return SimulatedStep(
            by="analytic",
            timeline=timeline,
            evaluation_bytes=evaluation_bytes,
            num_parameters=self.weights.num_parameters,
            num_trainable_parameters=self.weights.num_trainable_parameters,
            compute=self._compute(at, shape, self.card),
            flops_per_micro_step=sum(map(flops, phases(at, shape))),
            versions=VERSIONS_LINEAR_EXPERTS if setting.linear_experts else VERSIONS,
            notes=self.weights.notes,
            picture=None if setting.vision is None else setting.vision.image,
            num_vision_parameters=self.weights.num_vision_parameters,
            model_class=trained_as(self.spec, job),
            inputs_text=describe_inputs(self.spec, job),
            communication=_communication(shape),
            num_gpus_simulated=len(shape.run.gpus) if 1 < len(shape.run.gpus) < job.num_gpus else None,
        )

    def _compute(self, at: StepAt, shape: Shape, card: Gpu) -> ComputeTime:
        """Times of a micro-step (the second, if there are two) and of the optimizer's step on a GPU."""
        job, weights = self.job, self.weights
        hooks_seconds = zero3_gathers(job, weights) * rates_of(card).zero3_seconds
        update = optimizer_seconds(job, weights.trained_bytes // state_shards(job), weights.num_trained, card)
        forward, backward = kernel_runs(at, shape)
        return ComputeTime(*micro_step_seconds(at.kernels, forward, backward, card, hooks_seconds), update)


def _others(job: Job) -> list[ModelSpec]:
    """The models that a job names beside the one that trains, as they are now."""
    return other_models({field: getattr(job, field) for field in (*OTHER_MODELS, "openrlhf", "verl")})


def _communication(shape: Shape) -> Communication:
    """What each GPU sends and receives in a step."""
    return shape.run.layout(shape.run.gpus[0]).communication


def state_shards(job: Job) -> int:
    """Number of GPUs that each update a part of the weights."""
    return job.num_gpus // job.fsdp.replicas if job.strategy in ("zero1", "zero2", "zero3", "fsdp") else 1


def zero3_gathers(job: Job, weights: Weights) -> int:
    """Number of times that ZeRO-3 gathers a weight in a micro-step: in forward, in backward, when it is recomputed."""
    if job.strategy != "zero3":
        return 0
    return (3 if job.checkpointing == "full" else 2) * weights.num_weights


def kernel_runs(at: StepAt, shape: Shape) -> tuple[Runs, Runs]:
    """Numbers of the distinct kernels of a micro-step's forward and backward, each with its number of runs."""
    forward, backward = (
        [(at.kernel_of[number], times) for number, times in part] for part in (shape.forward, shape.backward)
    )
    return forward, backward


def phases(at: StepAt, shape: Shape) -> tuple[Kernels, Kernels]:
    """Kernels of a micro-step's forward and backward, each with its number of runs."""
    forward, backward = ([(at.kernels[number], times) for number, times in part] for part in kernel_runs(at, shape))
    return forward, backward


def depends_on_size(job: Job) -> bool:
    """Whether a step depends on the GPU, beyond the kernels that its model runs.

    ZeRO-1 and 2 flatten weights on the host if the GPU lacks memory, transformers 4 requests no more than is free
    before it loads, vLLM takes a share of the GPU, and a reward model or a critic runs kernels of its own.
    """
    maps = job.is_mapped and job.experts == "linear"
    others = job.reward_model is not None or job.openrlhf.critic is not None or job.verl.critic is not None
    return job.strategy in ("zero1", "zero2") or maps or is_colocated(job) or others


def count_notes(spec: ModelSpec, job: Job, counted: int) -> list[str]:
    """A note if the published files hold another number of elements than the estimate counts; a task has its own."""
    if job.task is not None or spec.num_parameters == counted or spec.stored_parameters in (None, counted):
        return []
    return [
        f"the published files hold {spec.stored_parameters:,} elements, the estimate counts {counted:,} parameters:"
        f" buffers, a stored copy of a tied head, or a variant of {spec.model_type} that is not supported"
    ]


def linear_names(record: StepRecord, pattern: str) -> list[str]:
    """Names of the linear layers that may get an adapter, and those that PEFT's `pattern` takes for experts."""
    layers = {
        weight.name.removesuffix(".weight")
        for weight in record.weights
        if len(weight.shape) == 2 and weight.layer is not None and not weight.is_adapter
    }
    return sorted(layers - record.routers | set(FORMER[pattern]) | {"lm_head"})


def saved_names(record: StepRecord) -> set[str]:
    """Names of the modules that may train in a copy: those whose own weights are not quantized."""
    kept = [weight for weight in record.weights if not weight.is_adapter and not weight.stored]
    tied = {"lm_head"}  # an output head always is one, tied or not
    heads = {weight.name.partition(".")[0] for weight in kept if weight.layer is None}  # of several layers, perhaps
    return {weight.name.rpartition(".")[0] for weight in kept} | heads | tied
