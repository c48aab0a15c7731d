"""The result types: a simulated step, and the estimate of a job on a GPU, term by term."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from vramplan.dataclass import dataclass
from vramplan.result import Result
from vramplan.step_time.communication import Communication

if TYPE_CHECKING:
    from vramplan.inputs.gpu import Gpu
    from vramplan.inputs.images import ProcessedImage
    from vramplan.inputs.job import Job
    from vramplan.memory.timeline import Timeline
    from vramplan.step_time.step_time import ComputeTime, StepTime


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """The memory and work of a job's training step, before any GPU's capacity is compared with it."""

    by: str
    """analytic, trace or probe."""
    timeline: Timeline
    """Loading and optimizer steps: three of an analytic estimate, two of a trace."""
    evaluation_bytes: int
    """Highest sum of live tensors in a forward without gradients, without the model and optimizer states."""
    num_parameters: int
    num_trainable_parameters: int
    compute: ComputeTime
    flops_per_micro_step: int
    versions: str
    """The libraries that the step mirrors or was traced with."""
    notes: tuple[str, ...] = ()
    picture: ProcessedImage | None = None
    """Tokens and patches of each image or video; None for a model without vision."""
    num_vision_parameters: int = 0
    model_class: str = ""
    """The class of transformers that is trained, in words; empty for a user's own model."""
    inputs_text: str | None = None
    """Inputs and labels in words, for a model that is not a causal language model."""
    communication: Communication = Communication()
    """What each GPU sends and receives in an optimizer step."""
    num_gpus_simulated: int | None = None
    """GPUs that were simulated; None if all need the same, or all were."""
    own_model: bool = False
    """Whether it is a user's own model, which chooses its attention, its loss and the shape of its inputs."""

    @property
    def peak_tensor_bytes(self) -> int:
        """Highest sum of live tensors, without kernels' own workspaces."""
        return self.timeline.peak_bytes(with_kernels=False)


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the device total: tensors of one kind at the allocated peak."""

    category: str
    label: str
    num_bytes: int
    count: int = 1
    """Number of tensors."""
    formula: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class CardShare:
    """The memory of one of the GPUs that a model is placed on (device_map). All sizes are bytes."""

    number: int
    holds: str
    """The modules on it, in words."""
    parameter_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_total_bytes: int
    evaluation_bytes: int
    """Allocated peak of an evaluation at the same batch."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Estimate(Result):
    """The memory that a job needs, per GPU. All sizes are bytes.

    `terms` sum to `device_total_bytes`; `__post_init__` is the one place that asserts it.
    """

    model: str
    by: str
    """analytic, trace or probe."""
    card: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    peak_tensor_bytes: int
    """Highest sum of live tensors, each rounded to 512 bytes, without kernels' own workspaces."""
    peak_allocated_bytes: int
    """As torch.cuda.max_memory_allocated reports it, with workspaces and unsplit block remainders."""
    peak_reserved_bytes: int
    """As torch.cuda.max_memory_reserved reports it."""
    device_total_bytes: int
    """Reserved, plus memory outside PyTorch's allocator (CUDA context, NCCL): as nvidia-smi shows for the process."""
    capacity_bytes: int
    """Bytes of the GPU that this process may use."""
    margin_bytes: int
    """Of the capacity, the safety margin for the error of the estimate."""
    fits: bool
    """Whether it fits with the safety margin."""
    fits_without_margin: bool
    """Whether it fits without the safety margin."""
    phases: dict[str, int]
    """Allocated peak of each phase: loaded, forward, backward, optimizer, eval."""
    peak_phase: str
    terms: tuple[Term, ...]
    job: Job
    """The job that was estimated."""
    num_parameters: int
    """Distinct parameters of the model itself, adapters left out."""
    num_trainable_parameters: int
    assumptions: tuple[str, ...]
    model_class: str = ""
    """The class of transformers that is trained, in words; empty for a user's own model."""
    image_tokens_per_sample: int | None = None
    """Positions that the images of a sample take, separators included; None for a model without vision."""
    num_vision_parameters: int = 0
    """Of the vision tower and the projector."""
    notes: tuple[str, ...] = ()
    compute: ComputeTime | None = None
    """Times of one GPU's computation; None if they are not known."""
    flops_per_micro_step: int = 0
    step_time: StepTime | None = None
    """Time of an optimizer step; None if a rate of the GPU, or of its links, is not known."""
    num_cache_releases: int = 0
    """How often PyTorch gives back what it has cached, in the simulated steps, because the GPU is full."""
    timeline: Timeline | None = field(default=None, repr=False, compare=False)
    """Loading and optimizer steps, event by event."""
    cards: tuple[CardShare, ...] = ()
    """All GPUs that the model is placed on; the estimate is that of the one that needs most."""
    card_title: str = ""
    """The manufacturer's name of the GPU."""

    def __post_init__(self) -> None:
        total = sum(term.num_bytes for term in self.terms)
        if total != self.device_total_bytes:
            raise AssertionError(f"terms sum to {total}, not to the device total {self.device_total_bytes}")

    @property
    def step_seconds(self) -> float:
        """Time of an optimizer step, to compare plans on one GPU: without communication if that is not known."""
        if self.step_time is not None:
            return self.step_time.seconds
        assert self.compute is not None
        return self.gradient_accumulation_steps * self.compute.micro_step_seconds + self.compute.optimizer_seconds

    @property
    def lower_bound_bytes(self) -> int:
        """Device total without memory cached by PyTorch, in bytes: the minimum if the job does not fit."""
        return self.peak_allocated_bytes + self.device_total_bytes - self.peak_reserved_bytes

    @property
    def fullest_card(self) -> int:
        """Number of the GPU that needs most, of those that the model is placed on."""
        return next((share.number for share in self.cards if share.device_total_bytes == self.device_total_bytes), 0)

    @property
    def evaluation_bytes(self) -> int:
        """Allocated peak of an evaluation at the same batch in bytes, on the GPU with the highest."""
        return max((share.evaluation_bytes for share in self.cards), default=self.phases["eval"])

    @property
    def headroom_bytes(self) -> int:
        """Bytes of the GPU that stay free; negative if the job does not fit."""
        return self.capacity_bytes - self.device_total_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes that stay free beyond the margin."""
        return self.headroom_bytes - self.margin_bytes

    def by_category(self) -> dict[str, int]:
        """Bytes of each category."""
        totals: dict[str, int] = {}
        for term in self.terms:
            totals[term.category] = totals.get(term.category, 0) + term.num_bytes
        return totals


def fullest(estimates: Iterable[Estimate]) -> Estimate:
    """The estimate of the GPU that needs most: of one that the job does not fit on, if there is one."""
    return max(estimates, key=lambda one: (not one.fits_without_margin, not one.fits, one.device_total_bytes))


@dataclass(frozen=True, slots=True)
class PartialEstimate:
    """A lower bound computed first; call `complete` for the estimate."""

    lower_bound_bytes: int
    """The least that the job needs on the GPU, in bytes."""
    complete: Callable[[], Estimate]
    timelines: Mapping[int, Timeline] = field(default_factory=dict, repr=False)
    """Loading and optimizer steps by number of the GPU, of those that the bound comes from; empty for a trace."""
    compute: Callable[[Gpu], ComputeTime] | None = None
    """Times of the computation on a GPU, without the estimate."""
    communication: Communication = Communication()
    """What each GPU sends and receives in an optimizer step."""
