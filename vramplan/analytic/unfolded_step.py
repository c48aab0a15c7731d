"""One job's training step, simulated on the tape and unfolded to the whole model: weights, storages, kernels."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import groupby
from math import prod

from vramplan.analytic.architectures.torchtune import first_flex_inputs, position_tables
from vramplan.analytic.architectures.vision_tower import PARTS, TOWER
from vramplan.analytic.autograd.graph import StorageInfo, Stored
from vramplan.analytic.autograd.ops import NUM_SHARDED, TORCHAO_NF4
from vramplan.analytic.autograd.repeated_experts import named
from vramplan.analytic.autograd.saved_tensors import BROUGHT_BACK
from vramplan.analytic.layer_folding import FoldPlan, unfold
from vramplan.analytic.layers.chunked_head import SCORED
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import RecordedWeight, StepRecord, record_of
from vramplan.analytic.tasks.reference import SECOND
from vramplan.analytic.train_step import declare, simulate_step
from vramplan.dataclass import dataclass
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.optimizer_steps import Weight, is_embedding
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES

COPY = 1
"""CUDA stream on which saved tensors come back from the host."""
EXPERT = re.compile(r"\.experts\.\d+\.")
"""Part of the name of a weight that belongs to one expert."""


@contextmanager
def no_cycle_collection() -> Iterator[None]:
    """Pause the cycle collector: simulations free by reference count, and searches for cycles only cost time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Placed:
    """A parameter of the whole model: the simulated one that represents it, and its layer."""

    parameter: RecordedWeight
    layer: int | None
    copy: int = 0
    """Its number among those that the simulated one represents within its layer."""

    @property
    def name(self) -> str:
        """Its name within its layer."""
        return named(self.parameter.name, self.copy)

    @property
    def weight(self) -> Weight:
        """As the optimizer sees it."""
        return Weight(self.parameter.name, self.parameter.shape, self.parameter.dtype)

    def storages(self, dtype: str | None = None) -> list[Storage]:
        """Its storages; in another dtype if given and not quantized."""
        one, in_layer = self.parameter, self.layer is not None
        return _stored(one.name, one.shape, dtype or one.dtype, one.stored, in_layer)

    def beside(self) -> list[Storage]:
        """The scales of a quantized weight, which are not sharded with it; torchao's are."""
        num_sharded = NUM_SHARDED if self.parameter.quantize == TORCHAO_NF4 else 1
        return self.storages()[num_sharded:] if self.parameter.stored else []


@lru_cache(maxsize=4096)
def _stored(name: str, shape: tuple[int, ...], dtype: str, stored: Stored, in_layer: bool) -> list[Storage]:
    whole = ("", prod(shape) * DTYPE_BYTES[dtype], f"{' x '.join(map(str, shape))} {dtype}")
    return [
        Storage(num_bytes, "parameter", label(name, what, in_layer), formula)
        for what, num_bytes, formula in stored or (whole,)
    ]


def buffers_of(setting: StepSpec) -> list[Storage]:
    """Buffers loaded with the parameters: tables and rotary frequencies."""
    architecture, config = setting.architecture, setting.config
    if setting.job.layers_of == "torchtune":
        return position_tables(architecture, config, setting.job) + first_flex_inputs(config, setting.job)
    found = []
    rotary = architecture.decoder.rotary(config) if architecture.decoder is not None else None
    if rotary is not None:  # LlamaRotaryEmbedding: inv_freq and original_inv_freq
        found += [Storage(rotary.dim // 2 * 4, "parameter", "rotary frequencies", "fp32 buffers")] * 2
    for table in architecture.buffers(config):
        dtype = table.dtype or setting.job.dtype
        formula = f"{' x '.join(map(str, table.shape))} {dtype}"
        found.append(Storage(table.num_elements * DTYPE_BYTES[dtype], "parameter", table.name, formula))
    return found


def _by_layer(record: StepRecord) -> dict[int | None, list[RecordedWeight]]:
    """The simulated parameters by layer, in order of use."""
    found: dict[int | None, list[RecordedWeight]] = {}
    for parameter in record.weights:
        found.setdefault(parameter.layer, []).append(parameter)
    return found


def layer_of(simulated: list[RecordedWeight], layer: int) -> Iterator[Placed]:
    """A layer's parameters; those of experts that one represents, one expert after another."""
    for copies, alike in groupby(simulated, key=lambda one: one.copies):
        several = list(alike)
        for number in range(copies):
            yield from (Placed(one, layer, number) for one in several)


def weights_of(record: StepRecord, plan: FoldPlan) -> list[Placed]:
    """All parameters of the whole model, in order of use; adapters last, as PEFT adds them to a loaded model."""
    by_layer = _by_layer(record)
    placed: list[Placed] = []
    for stack in plan.stacks:
        outside = [p for p in by_layer.get(None, []) if (p.name.partition(".")[0] in PARTS) == (stack.base >= TOWER)]
        embeddings = [p for p in outside if is_embedding(p.name)]
        placed += [Placed(parameter, None) for parameter in embeddings]
        for layer, simulated in enumerate(stack.layers(), stack.base):
            placed += layer_of(by_layer.get(simulated, []), layer)
        placed += [Placed(parameter, None) for parameter in outside if parameter not in embeddings]
    return sorted(placed, key=lambda one: one.parameter.is_adapter)


def in_order(record: StepRecord, plan: FoldPlan, loads: tuple[str | int, ...]) -> list[Placed]:
    """All parameters in a given order: prefixes of names, numbers of stacks."""
    by_layer = _by_layer(record)
    outside = by_layer.get(None, [])
    placed: list[Placed] = []
    for part in (*loads, ""):
        if isinstance(part, int):
            stack = plan.stacks[part]
            for layer, simulated in enumerate(stack.layers(), stack.base):
                placed += layer_of(by_layer.get(simulated, []), layer)
            continue
        placed += [Placed(parameter, None) for parameter in outside if parameter.name.startswith(part)]
        outside = [parameter for parameter in outside if not parameter.name.startswith(part)]
    return sorted(placed, key=lambda one: one.parameter.is_adapter)


def label(module: str, what: str, in_layer: bool) -> str:
    """A storage's name for people: layers share one, and so do a layer's experts."""
    name = EXPERT.sub(".experts.*.", module.partition("#")[0]) if ".experts." in module else module
    return f"{'layers.*.' if in_layer else ''}{name} {what}".strip()


@lru_cache(maxsize=4096)
def describe(info: StorageInfo, kept: bool, in_layer: bool, vocabulary: int) -> Storage:
    """A simulated storage for the timeline; a tensor as wide as the vocabulary counts as logits."""
    category = info.category
    in_kernel = category == "workspace"
    if in_kernel or (category == "activation" and not kept):
        category = "temporary"
    if info.shape and info.shape[-1] == vocabulary and category in ("activation", "temporary") and not in_kernel:
        category = "logits"
    formula = f"{' x '.join(map(str, info.shape)) or 'scalar'} {info.dtype}"
    stream = COPY if info.what == BROUGHT_BACK else 0
    return Storage(info.num_bytes, category, label(info.module, info.what, in_layer), formula, in_kernel, stream)


def describe_in(
    setting: StepSpec, record: StepRecord, section_of: Sequence[int], number: int, info: StorageInfo
) -> Storage:
    """The storage of a record with this number, which is `info` at the micro-batch in question, for a timeline."""
    in_layer = record.sections[section_of[number]].layer is not None
    vocabulary = setting.architecture.shape(setting.config).vocabulary
    return describe(info, number in record.kept, in_layer, vocabulary)


def micro_steps(job: Job) -> int:
    """Number of micro-batches to simulate: without earlier gradients, and with them."""
    return min(2, job.gradient_accumulation_steps)


def is_brief(job: Job) -> bool:
    """Whether small tensors may be left out.

    Not under ZeRO-3, which gathers weights as modules make tensors, nor where ZeRO-1 frees a sum of gradients as the
    last one is added to it, nor where each gradient is followed by its weight's update.
    """
    if job.optimizer_in_backward and job.strategy == "ddp":
        return False
    sums = job.strategy == "zero1" and job.zero.overlap_comm and job.gradient_accumulation_steps > 1
    return job.strategy != "zero3" and not sums


class Step:
    """One job's step, simulated once (or given as `record`), from which timelines and times are derived."""

    def __init__(
        self,
        setting: StepSpec,
        plan: FoldPlan,
        card: Gpu,
        brief: bool = True,
        record: StepRecord | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.setting = setting
        self.plan = plan
        self.card = card
        self.job = setting.job
        self.micro_steps = micro_steps(self.job)
        self.record = record or simulate_step(setting, self.micro_steps)
        self.sizes = sizes or [info.on(card).num_bytes for info in self.record.storages]
        self.unfolded = unfold(self.record, plan, self.sizes, brief and is_brief(self.job))

    def describe(self, number: int) -> Storage:
        """A simulated storage for a timeline."""
        info = self.record.storages[number].on(self.card)
        return describe_in(self.setting, self.record, self.unfolded.section_of, number, info)

    @property
    def embedded(self) -> RecordedWeight | None:
        """Weight of the first embedding."""
        return None if self.record.embedded is None else self.record.weights[self.record.embedded]

    @cached_property
    def placed(self) -> list[Placed]:
        """All parameters that are loaded to train: the whole model's, and a value model's."""
        return self.own_placed if self.setting.values is None else [*self.own_placed, *self._of_second]

    @property
    def _of_second(self) -> list[Placed]:
        return weights_of(self.record._replace(weights=self.record.second_weights), self.plan)

    @cached_property
    def own_placed(self) -> list[Placed]:
        """The whole model's parameters."""
        loads = self.setting.architecture.loads
        if self.setting.vision is not None and self.setting.vision.tower.loads:
            loads = self.setting.vision.tower.loads
        elif loads and self.setting.vision is not None:  # the tower's stack comes first
            later = (part if isinstance(part, str) else part + 1 for part in loads)
            loads = (PARTS[0], 0, *later, *PARTS[1:])
        if loads:
            return in_order(self.record, self.plan, loads)
        if self.setting.device_map is not None:
            return in_order(self.record, self.plan, ("model.embed_tokens", *range(len(self.plan.stacks))))
        return weights_of(self.record, self.plan)

    def of_teacher(self) -> Step:
        """The same simulation as the teacher's step: its weights, architecture and job are the model's own."""
        assert self.setting.teacher is not None
        weights = self.record.second_weights
        embedded = next((n for n, one in enumerate(weights) if one.layer is None and is_embedding(one.name)), None)
        found = copy.copy(self)
        for name in ("placed", "own_placed", "second_placed", "num_parameters", "trained", "updated"):
            found.__dict__.pop(name, None)
        found.setting, found.job = self.setting.teacher, self.setting.teacher.job
        found.record = self.record._replace(weights=weights, second_weights=(), embedded=embedded)
        return found

    @cached_property
    def second_placed(self) -> list[Placed]:
        """The parameters of a second model: the teacher's, or those of the whole model without adapters."""
        if self.setting.teacher is not None:
            return self._of_second
        return [one for one in self.own_placed if not one.parameter.is_adapter]

    @cached_property
    def num_parameters(self) -> int:
        """Distinct parameters of the model itself, adapters left out."""
        return sum(one.parameter.num_elements for one in self.own_placed if not one.parameter.is_adapter)

    @cached_property
    def num_vision_parameters(self) -> int:
        """Parameters of the vision tower and the projector."""
        if self.setting.vision is None:
            return 0
        seeing = [one.parameter for one in self.placed if one.parameter.name.partition(".")[0] in PARTS]
        inside = [one.parameter for one in self.placed if one.layer is not None and one.layer >= TOWER]
        return sum(parameter.num_elements for parameter in (*seeing, *inside) if not parameter.is_adapter)

    @cached_property
    def trained(self) -> list[Weight]:
        """The weights that the optimizer updates."""
        return [one.weight for one in self.placed if one.parameter.trains]

    @cached_property
    def updated(self) -> list[Weight]:
        """The weights that got a gradient: a batch without images does not reach the tower."""
        return [one.weight for one in self.placed if one.parameter.is_reached]

    def head_begins(self, events: Sequence[int]) -> int:
        """Index of the output head's first event in a backward."""
        storages, source = self.record.storages, self.unfolded.source
        return next((n for n, e in enumerate(events) if e >= 0 and storages[source[e]].module == "lm_head"), 0)

    def head_drops(self, events: Sequence[int]) -> int:
        """Index behind the event of a backward with which the fused head's node drops what it saved."""
        storages, source = self.record.storages, self.unfolded.source
        freed = (n for n, e in enumerate(events, 1) if e < 0 and storages[source[~e]].what == SCORED)
        return next(freed, len(events))

    def gradients_of(self, placed: Iterable[Placed]) -> list[int]:
        """Number of each weight's gradient among the simulated step's storages."""
        found = []
        for one in placed:
            if one.copy == 0:
                found += [self.unfolded.place(id, one.layer) for id in one.parameter.gradient]
        return found

    def kernels(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(forward, backward) of the last micro-step: number of each kernel, and how often it runs."""
        phases: dict[str, list[tuple[int, int]]] = {}
        for number, section in enumerate(self.record.sections):
            end = self.record.end_of(number).first_kernel
            times = self.plan.copies_of(section.layer) * self.record.run_times.get(section.run, 1)
            times *= 1 if section.chunk is None else section.chunk.copies
            phases.setdefault(section.phase, []).extend((kernel, times) for kernel in range(section.first_kernel, end))
        last = "1" if "forward.1" in phases else "0"
        forward = list(phases[f"forward.{last}"])
        for phase, kernels in phases.items():
            if phase.partition(".")[0] in SECOND and phase.endswith(f".{last}"):
                forward += kernels
        return forward, phases.get(f"backward.{last}", [])


def count_parameters(setting: StepSpec, plan: FoldPlan) -> int:
    """Distinct parameters of the whole model."""
    return sum(one.parameter.num_elements for one in weights_of(record_of(declare(setting).tape), plan))
