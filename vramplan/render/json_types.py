"""What `--json` prints, as types: mypy checks the code that writes the output against them.

Sizes are bytes, times seconds. Keys stay as they are; a new release may add keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, GetPydanticSchema, create_model
from typing_extensions import NotRequired, TypedDict

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import CardShare
from vramplan.memory.generation import Generation
from vramplan.memory.host import HostTensors
from vramplan.memory.measurement import Measured

EXACT = ConfigDict(extra="forbid", use_attribute_docstrings=True)


def written(model: Any) -> GetPydanticSchema:
    """A dictionary whose keys are a model's."""
    return GetPydanticSchema(lambda _, handler: handler(model))


def _with_properties(model: Any, **properties: Any) -> Any:
    """A model's keys and some more."""
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in model.model_fields.items()}
    added: dict[str, Any] = {name: (kind, ...) for name, kind in properties.items()}
    return create_model(f"{model.__name__}Run", __config__=model.model_config, **fields, **added)


JobData = Annotated[dict[str, Any], written(Job)]
GpuData = Annotated[dict[str, Any], written(Gpu)]
ModelData = Annotated[dict[str, Any], written(ModelSpec)]
GenerationData = Annotated[dict[str, Any], written(Generation)]
HostTensorsData = Annotated[dict[str, Any], written(HostTensors)]
ShareData = Annotated[dict[str, Any], written(CardShare)]
MeasuredData = Annotated[
    dict[str, Any],
    written(
        _with_properties(
            Measured, device_total_bytes=int | None, step_time=float | None, tokens_per_second=float | None
        )
    ),
]


class Exact(TypedDict):
    """Nothing but the keys that are named."""


Exact.__pydantic_config__ = EXACT  # type: ignore[attr-defined]


class TermData(Exact):
    """Some tensors of one kind at the moment of the allocated peak."""

    category: str
    label: str
    bytes: int
    count: int
    """Tensors of this kind."""
    formula: str
    source: str


class StepTimeData(Exact):
    """The time of an optimizer step; reading the data is left out."""

    seconds: float
    low_seconds: float
    high_seconds: float
    micro_step_seconds: float
    """One forward and backward of a micro-batch."""
    communication_seconds: float
    """Of the whole step, as far as computation does not hide it."""
    optimizer_seconds: float
    samples_per_second: float
    """Of all GPUs."""
    tokens_per_second: float | None
    """Of all GPUs; null for images alone, and for samples that differ in length."""


class EstimateData(Exact):
    """What a job needs of one GPU, the fullest one."""

    model: str
    by: str
    """analytic or trace."""
    card: str
    """The GPU's short name."""
    micro_batch_size: int
    gradient_accumulation_steps: int
    peak_tensor_bytes: int
    """Highest sum of live tensors."""
    peak_allocated_bytes: int
    """torch.cuda.max_memory_allocated."""
    peak_reserved_bytes: int
    """torch.cuda.max_memory_reserved."""
    device_total_bytes: int
    """The need of the GPU: reserved, CUDA context and NCCL; what nvidia-smi shows for the process."""
    capacity_bytes: int
    """What this process may take of the GPU."""
    headroom_bytes: int
    """Capacity less need."""
    margin_bytes: int
    """Safety margin: what a plan leaves free."""
    fits: bool
    """Whether it fits with the margin left free."""
    fits_without_margin: bool
    peak_phase: str
    phases: dict[str, int]
    """Allocated peak of each phase."""
    terms: list[TermData]
    """Sum up to device_total_bytes."""
    cards: list[ShareData]
    """Every GPU, if the model is spread over several."""
    num_parameters: int
    num_trainable_parameters: int
    num_vision_parameters: int
    image_tokens_per_sample: int | None
    flops_per_micro_step: int
    step_time: StepTimeData | None
    """Null if a rate of the GPU, or of its links, is not known."""
    job: JobData
    assumptions: list[str]
    notes: list[str]


class HostData(Exact):
    """Host memory of one node."""

    gpus_per_node: int
    phases: dict[str, int]
    """Bytes to load, train, save and merge, without files that the system caches."""
    pinned_bytes: int
    tensors: list[HostTensorsData]
    notes: list[str]


class EstimateAnswerData(EstimateData):
    """`vramplan estimate --json`."""

    host: HostData

    generation: GenerationData | None
    """The model loaded on one GPU to generate; null without --generate-tokens."""


class RunData(Exact):
    """A whole training run."""

    micro_steps: int
    """Forward and backward passes per GPU."""
    optimizer_updates: int
    """Optimizer steps, accumulation going on across epochs."""
    trainer_updates: int
    """The same if the loop also steps at the end of every epoch, as transformers' Trainer does."""
    warmup_updates: int | None
    """Of these, with a learning rate that is still rising."""
    seconds: float | None
    most_energy_kwh: float | None
    """Of the GPUs, if they draw what their power limit allows."""


class PlanData(Exact):
    """One way to reach the global batch."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel: int
    global_batch_size: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_total_bytes: int
    headroom_bytes: int
    fits: bool
    relative_step_time: float
    """Time of an optimizer step as a multiple of the fastest plan's."""
    step_time: StepTimeData | None
    """Null if a rate of the GPU, or of its links, is not known."""
    run: RunData | None
    """Null if the run's length was not given."""


class RejectedData(Exact):
    """A micro-batch that does not fit."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    reason: str
    device_total_bytes: int | None
    """At least, unless it fits without margin; null if it was not estimated."""


class AdviceData(Exact):
    """A change that saves memory, estimated."""

    change: str
    why: str
    cost: str
    saved_bytes: int
    fits: bool
    micro_batch_size: int
    """The micro-batch of the figures."""
    device_total_bytes: int
    """At least, if it does not fit."""


class SolvedData(Exact):
    """The largest value that `--solve` found."""

    quantity: str
    value: int | list[int]
    bounded_by_memory: bool
    estimate: EstimateData


class ProbeRunData(Exact):
    """A real run beside its estimate."""

    fits: bool
    measured: MeasuredData
    predicted: EstimateData | None


class VerifiedData(Exact):
    """What real runs made of the plan."""

    plan: PlanData | None
    settled: bool
    tries: list[ProbeRunData]


class GainData(Exact):
    """A change that lessens communication, estimated."""

    change: str
    seconds_per_sample: float
    communication_share: float
    device_total_bytes: int


class CommunicationData(Exact):
    """What communication between GPUs costs the recommended plan."""

    seconds: float
    share: float
    """Of a step's time."""
    share_at_twice: float
    """The same at twice the accumulation."""
    enough_accumulation: int
    """Past which less than 2 % of a sample's time is left to gain."""
    gains: list[GainData]


class SearchData(Exact):
    """`vramplan suggest --json`."""

    model: str
    card: str
    num_gpus: int
    global_batch_size: int
    plans: list[PlanData]
    """Those that fit, the preferred one first."""
    recommended: PlanData | None
    """One of the plans; null if none fits."""
    reason: str
    """Why that one is preferred; empty if no other plan fits."""
    communication: CommunicationData | None
    """Null for one GPU, and if it takes less than 2 % of a step."""
    max_micro_batch_size: int
    rejected: list[RejectedData]
    advice: list[AdviceData]
    warnings: list[str]
    guidance: list[str]
    """What is known of global batches such as this one, with its source."""
    learning_rate: float | None
    samples: int | None
    epochs: float | None
    capacity_bytes: int
    estimate: EstimateData
    """Of the recommended plan, or of the smallest if none fits."""
    assumptions: list[str]
    notes: list[str]
    solved: NotRequired[SolvedData]
    """With --solve."""
    verified: NotRequired[VerifiedData]
    """With --probe."""


class CountData(Exact):
    """What becomes of an image of one size."""

    width: int
    height: int
    becomes: str
    tokens: int
    extra_tokens: int
    tiles: int | None


class ImageData(CountData):
    """The same with the memory that it needs."""

    patches: int
    sequence_length: int
    max_micro_batch_size: int
    """0 if none fits."""
    estimate: EstimateData
    """At micro-batch 1."""


class NoteData(Exact):
    """What a reader should know of one key of the configuration."""

    kind: Literal["doubt", "unknown", "warning", "default", "ignored"]
    key: str
    text: str
    place: str


class BatchData(Exact):
    """A micro-batch and its accumulation."""

    micro_batch_size: int
    gradient_accumulation_steps: int


class CounselData(Exact):
    """A change in the framework's own words."""

    change: str
    settings: list[str]
    fits: bool
    device_total_bytes: int
    """At least, if it does not fit."""
    cost: str


class TokensData(Exact):
    """Tokens of the samples."""

    p50: int
    p95: int
    p99: int
    longest: int
    sum: int


class DatasetData(Exact):
    """The samples of `--dataset`, and what they make of the batches."""

    path: str
    tokens_by: str
    exact: bool
    samples: int
    tokens: TokensData
    images: int
    limit: int
    longer: int
    longer_share: float
    longer_are: Literal["dropped", "cut"]
    rows: str
    worst_length: int
    padded_to: float
    padding_share: float
    near_length: int | None
    near_share: float | None
    trained_samples: int
    steps_per_epoch: int
    fitting_length: int | None
    fitting_longer_share: float | None


class CaseData(Exact):
    """The need for one value of what a configuration does not say."""

    sequence_length: int
    num_gpus: int
    need_bytes: int
    fits: bool


class GroupData(Exact):
    """A group of GPUs of a run that has several."""

    name: str
    num_gpus: int
    need_bytes: int | None
    """Of each of them; null if that is not known."""
    fits: bool | None
    """Null if that is not known."""
    text: str
    key: str
    """The setting that says how many GPUs it has."""


class CheckData(Exact):
    """`vramplan check --json` of one configuration; several give a list."""

    fits: bool
    """Whatever the configuration does not say."""
    depends: bool
    """Whether it fits for some of the `cases` alone, or is not known of some of the `groups`."""
    cases: list[CaseData]
    """The need for each value of what the configuration does not say; empty if it says all."""
    groups: list[GroupData]
    """The groups of GPUs of a run that has several; the estimate is of the first that does not fit, else the first."""
    read_as: str
    need_bytes: int
    """The need of the GPU at the worst moment, an evaluation included."""
    free_bytes: int
    evaluation_bytes: int | None
    framework: str
    framework_version: str
    job: JobData
    notes: list[NoteData]
    plan: BatchData | None
    """Another micro-batch at the same global batch that fits."""
    plan_warnings: list[str]
    """What could turn it or the nearest change (vLLM may not start), and what a smaller micro-batch changes."""
    shorter_length: int | None
    """Tokens of samples that fit, if those of the configuration's limit, which are counted, do not."""
    eval_batch_size: int | None
    advice: list[CounselData]
    dataset: DatasetData | None
    estimate: EstimateData


class ChangeData(Exact):
    """A setting that `--fix` changed."""

    key: str
    before: str | None
    after: str
    cost: str


class FixData(CheckData):
    """`vramplan check --fix --json`: the answer for the changed text."""

    fitted_before: bool
    changes: list[ChangeData]
    text: str
    least_bytes: int
    """The least need of all that was tried."""


class SideData(EstimateData):
    """One of two jobs."""

    title: str


class DifferenceData(Exact):
    """A size on both sides."""

    category: str
    bytes: list[int]
    difference: int


class TermDifferenceData(DifferenceData):
    """Tensors that differ."""

    label: str


class ComparisonData(Exact):
    """`vramplan compare --json`."""

    sides: list[SideData]
    categories: list[DifferenceData]
    terms: list[TermDifferenceData]
    job: dict[str, list[Any]]
    """Settings that differ, and their two values."""


class LargestData(Exact):
    """`vramplan probe --find-max --json`."""

    largest_micro_batch_size: int
    exact: bool
    tries: list[ProbeRunData]
