"""The figures of a report: one job on several GPUs, with every micro-batch that meets its global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, VramplanError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.planner.load import load_both
from vramplan.planner.search_result import Search
from vramplan.planner.suggest import suggest
from vramplan.progress import Progress, silent

GPUS = ("rtx3060-12gb", "rtx4060ti-16gb", "rtx4090", "rtx5090", "l40s", "a100-80gb-sxm", "h100-sxm", "h200-sxm")
"""A usual GPU of each size, beside the one that is asked for."""
BATCH_PER_GPU = 16
"""Samples of an optimizer step for each GPU if no batch is given."""
MOST_GPUS = 32


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a report shows."""

    search: Search
    """On the GPU that was asked for, with changes that would help."""
    others: Mapping[str, Search | str]
    """Search by name of each other GPU, in the order of their memory; why the job cannot run if it cannot."""
    gpus: Mapping[str, Gpu]
    """All GPUs, in the order of their memory."""
    micro_batch_size: int
    """The micro-batch that it starts with."""

    @property
    def start(self) -> Estimate:
        """The estimate that it starts with."""
        plans = {plan.micro_batch_size: plan.estimate for plan in self.search.plans}
        return plans.get(self.micro_batch_size, self.search.smallest)

    def on(self, name: str) -> Search | str:
        """The search on a GPU, or why there is none."""
        return self.search if name == self.search.card.name else self.others[name]


@accepts_usual_names
def build(
    model: str | ModelSpec,
    gpu: str | Gpu,
    *,
    global_batch: int | None = None,
    micro_batch_size: int | None = None,
    gpus: Sequence[str | Gpu] | None = None,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    **job: Any,
) -> Report:
    """Every figure of a report; keyword arguments are fields of :class:`vramplan.Job`.

    It starts with `micro_batch_size` if that is given, else with the plan that is recommended for `global_batch`, which
    is 16 samples on each GPU unless the accumulation is given too. `gpus` are those to choose from beside `gpu`.

    Raises:
        VramplanError: for whatever cannot run on `gpu`, or is not modelled.
    """
    spec, own_gpu = load_both(load_model(model), gpu, confidence)
    micro, steps = micro_batch_size, job.pop("gradient_accumulation_steps", None)
    copies = 1 if job.get("strategy") == "device_map" else job.get("num_gpus") or 1
    if global_batch is None:
        global_batch = (micro or 1) * steps * copies if steps is not None else BATCH_PER_GPU * copies * (micro or 1)
    elif steps is not None and (micro or 1) * steps * copies != global_batch:
        raise ConfigError(
            f"{setting('global_batch', global_batch)} is not the product of the other sizes that are given"
        )
    listed = {other.name: other for other in map(load_gpu, GPUS if gpus is None else gpus)} | {own_gpu.name: own_gpu}
    if len(listed) > MOST_GPUS:
        raise ConfigError(f"{setting('gpus')}: at most {MOST_GPUS} GPUs in one report")
    ordered = dict(sorted(listed.items(), key=lambda item: item[1].usable_bytes))
    common: dict[str, Any] = {"confidence": confidence, "trust_remote_code": trust_remote_code}
    search = suggest(spec, gpu, global_batch, progress=progress, **common, **job)
    others: dict[str, Search | str] = {}
    for number, name in enumerate(name for name in ordered if name != own_gpu.name):
        progress(f"on {ordered[name].title}", (1 + number) / len(ordered))
        try:
            others[name] = suggest(spec, ordered[name], global_batch, advice=False, **common, **job)
        except VramplanError as error:
            others[name] = str(error)
    recommended = search.recommended
    start = recommended.micro_batch_size if recommended is not None else search.smallest.micro_batch_size
    if micro is not None:
        if micro not in {plan.micro_batch_size for plan in search.plans} | {search.smallest.micro_batch_size}:
            raise ConfigError(
                f"{setting('micro_batch_size', micro)} does not fit, or does not divide the global batch {global_batch}"
            )
        start = micro
    return Report(search, others, ordered, start)
