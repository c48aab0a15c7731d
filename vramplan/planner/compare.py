"""Two jobs side by side: two models, two GPUs, or two configurations, and where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramplan.bounded_read import is_file, read_json
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.memory.timeline import CATEGORIES
from vramplan.planner import check
from vramplan.planner.estimate import estimate
from vramplan.progress import Progress, silent
from vramplan.result import Result

Named = str | Path | ModelSpec | Gpu
"""A model, a configuration or a GPU, by name or loaded."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    title: str
    """What tells it from the other: the model, the GPU, or the file."""
    card: Gpu
    estimate: Estimate
    fits: bool
    """Of a configuration: at its fullest moment, which may be an evaluation."""


@dataclass(frozen=True, slots=True)
class Row:
    """A size on both sides."""

    category: str
    label: str
    bytes: tuple[int, int]

    @property
    def difference(self) -> int:
        """The second less the first."""
        return self.bytes[1] - self.bytes[0]


@dataclass(frozen=True, slots=True)
class Comparison(Result):
    """Both, and where they differ."""

    sides: tuple[Side, Side]

    @property
    def categories(self) -> list[Row]:
        """Every category that either has."""
        first, second = (side.estimate.by_category() for side in self.sides)
        sizes = ((name, (first.get(name, 0), second.get(name, 0))) for name in CATEGORIES)
        return [Row(name, "", both) for name, both in sizes if any(both)]

    @property
    def terms(self) -> list[Row]:
        """Tensors at the peaks that differ, the largest difference first; shapes are left out of account."""
        sizes: dict[tuple[str, str], list[int]] = {}
        for number, side in enumerate(self.sides):
            for term in side.estimate.terms:
                sizes.setdefault((term.category, term.label), [0, 0])[number] += term.num_bytes
        rows = [Row(category, label, (a, b)) for (category, label), (a, b) in sizes.items() if a != b]
        return sorted(rows, key=lambda row: -abs(row.difference))

    @property
    def job(self) -> dict[str, tuple[Any, Any]]:
        """Settings that differ; those that have no meaning on one side are None there."""
        first, second = (_settings(side.estimate.job) for side in self.sides)
        return {
            name: (first.get(name), second.get(name)) for name in {**first, **second} if _differ(name, first, second)
        }


@accepts_usual_names
def compare(
    *targets: Named | Sequence[Named],
    gpu: str | Gpu | Sequence[str | Gpu] | None = None,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    trust_remote_code: bool = False,
    **job: Any,
) -> Comparison:
    """Two targets on one GPU, or one on two GPUs; a target is a model, or a configuration that `check` reads.

    ``compare("A", "B", gpu="rtx4090")``, ``compare("A", gpu=["rtx4090", "rtx5090"])``. Without `gpu`, the last
    argument names the GPUs: ``compare(["A", "B"], "rtx4090")``.

    Args:
        *targets: the targets, one by one or as a list.
        gpu: the GPU, or two of them as a list, or between commas.
        confidence: How sure the verdict "fits" is to be, which sets the safety margin; 0 for none.
        progress: Called with what is being done, and the share that is done.
        trust_remote_code: Whether a trace may run code that comes with the model.
        **job: Fields of :class:`vramplan.Job`; of configurations, only `num_gpus`.

    Raises:
        VramplanError: for whatever cannot be read, cannot run or is not modelled.
    """
    *first, last = targets or ("",)
    named, gpus = (_each(first), _gpus([last])) if gpu is None else (_each(targets), _gpus([gpu]))
    if sorted((len(named), len(gpus))) != [1, 2]:
        raise ConfigError(
            f"compare takes two models or configurations on one GPU, or one on two GPUs: {setting('gpu', 'A,B')}"
        )
    models = [name if isinstance(name, ModelSpec) else str(name) for name in named if not isinstance(name, Gpu)]
    if len(models) < len(named):
        raise ConfigError(f"a GPU stands where a model or a configuration should: give it as {setting('gpu')}")
    is_config = [isinstance(model, str) and _is_configuration(model) for model in models]
    if any(is_config) and not all(is_config):
        raise ConfigError(f"{models[is_config.index(True)]} is a configuration, and the other a model: give two alike")
    settings = [name for name in job if name != "num_gpus"]
    if is_config[0] and settings:
        raise ConfigError(f"{settings[0]}: the configuration sets it; change it there")
    sides = []
    for model, on in [(model, on) for model in models for on in gpus]:
        own_gpu = with_margin(load_gpu(on), confidence)
        if isinstance(model, str) and is_config[0]:
            verdict = check.check(model, own_gpu, confidence=confidence, progress=progress, **job)
            side = Side(Path(model).name, own_gpu, verdict.estimate, verdict.fits)
        else:
            found = estimate(
                model, own_gpu, confidence=confidence, progress=progress, trust_remote_code=trust_remote_code, **job
            )
            side = Side(found.model.rpartition("/")[2], own_gpu, found, found.fits)
        sides.append(side if len(gpus) == 1 else replace(side, title=own_gpu.title))
    return Comparison((sides[0], sides[1]))


def _each(given: Iterable[Named | Sequence[Named]]) -> list[Named]:
    """All of some names and lists of names."""
    return [name for one in given for name in ([one] if isinstance(one, (str, Path, ModelSpec, Gpu)) else one)]


def _gpus(given: Iterable[Named | Sequence[Named]]) -> list[str | Gpu]:
    """GPUs of names, also between commas, and of lists of them."""
    gpus: list[str | Gpu] = []
    for name in _each(given):
        gpus += [name] if isinstance(name, Gpu) else [one.strip() for one in str(name).split(",")]
    return gpus


def _is_configuration(target: str) -> bool:
    """Whether a target is a file other than a model's own ``config.json``.

    Raises:
        ConfigError: for a file that is not there.
    """
    path = Path(target)
    if not is_file(path) and path.suffix in (".yaml", ".yml", ".sh", ".toml", ".py", ".ipynb"):
        raise ConfigError(f"{target}: no such file")
    if not is_file(path):
        return False
    if path.suffix != ".json":
        return True
    try:
        content = read_json(path)
    except ConfigError:
        return path.name != "config.json"
    return not (isinstance(content, dict) and ("model_type" in content or "architectures" in content))


def _settings(job: Job) -> dict[str, Any]:
    """The settings of a job that have a meaning for its method and strategy."""
    settings = job.model_dump(mode="json")
    for name in [name for name in settings if job.method == "full" and name.startswith("lora_")]:
        del settings[name]
    for part, strategies in (("zero", ("zero1", "zero2", "zero3")), ("fsdp", ("fsdp",))):
        part_settings = settings.pop(part)
        if job.strategy in strategies:
            settings |= {f"{part}.{name}": value for name, value in part_settings.items()}
    return settings


def _differ(name: str, first: dict[str, Any], second: dict[str, Any]) -> bool:
    missing = object()
    return bool(first.get(name, missing) != second.get(name, missing))
