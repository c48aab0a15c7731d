"""The request for a table: names and patterns in, models and GPUs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any, NamedTuple

from vramplan.analytic.architectures.lookup import is_described
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError, setting
from vramplan.inputs.catalog import all_gpus, load_spec, model_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job_values import DEFAULT_SEQUENCE_LENGTH, MAX_COUNT
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE, with_margin

METHODS = ("full", "lora", "qlora", "dora")


class Shown(NamedTuple):
    """Something that the cells can show."""

    title: str
    mark: str
    """The mark of a cell in which nothing fits, and its meaning."""
    field: str
    """The number's name in CSV and JSON."""
    takes_batch: bool
    """Whether the micro-batch is given, not searched for."""


SHOWN = {
    "max-batch": Shown("the largest micro-batch that fits", "0: does not fit", "max_micro_batch_size", False),
    "speed": Shown(
        "tokens/s of one GPU at the largest micro-batch that fits", "0: does not fit", "tokens_per_second", False
    ),
    "memory": Shown("GiB on the GPU", "*: does not fit", "device_total_bytes", True),
    "card": Shown("the smallest of these GPUs that fits", "-: none does, or it cannot run", "device_total_bytes", True),
}
OWN = ("method", "sequence_length", "micro_batch_size", "gradient_accumulation_steps")
"""Fields of the job that the table itself sets; a cell is one micro-batch to an optimizer step."""


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A table to fill."""

    models: tuple[ModelSpec, ...]
    cards: tuple[Gpu, ...]
    methods: tuple[str, ...]
    lengths: tuple[int, ...]
    show: str
    micro_batch_size: int
    """Of `memory` and `card`."""
    job: Mapping[str, Any]
    """The rest of every cell's job."""
    left_out: tuple[str, ...] = ()
    """Models that a pattern matched and the analytic estimator does not support."""

    @property
    def digest(self) -> str:
        """The same for equal requests alone, on any machine."""
        rows = self.models, self.methods, self.lengths, self.left_out
        return digest(*rows, self.cards, self.show, self.micro_batch_size, sorted(self.job.items()))


@accepts_usual_names
def table_request(
    models: Sequence[str | ModelSpec],
    gpus: Sequence[str | Gpu],
    *,
    methods: Sequence[str] = ("lora",),
    seq_lens: Sequence[int] = (DEFAULT_SEQUENCE_LENGTH,),
    show: str = "max-batch",
    micro_batch: int | None = None,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> TableRequest:
    """A table of these models on these GPUs; keyword arguments are fields of :class:`vramplan.Job`.

    Names with ``*``, ``?`` or ``[`` are patterns over the shipped models and GPUs.

    Raises:
        VramplanError: for a name that nothing matches, and an invalid setting.
    """
    models = [models] if isinstance(models, str) else models
    gpus = [gpus] if isinstance(gpus, str) else gpus
    one_of(setting("show"), show, SHOWN)
    for field in OWN:
        if field in job:
            columns = {"method": "methods", "sequence_length": "seq_lens", "micro_batch_size": "micro_batch"}
            way_out = f"give {setting(columns[field])}" if field in columns else "it is 1"
            raise ConfigError(f"{field}: in a table {way_out}")
    if micro_batch is not None and not SHOWN[show].takes_batch:
        raise ConfigError(
            f"{setting('micro_batch')} is what {setting('show', show)} searches for; it goes with memory and card"
        )
    specs = [spec for name in models for spec in models_called(name)]
    supported = [spec for spec in specs if is_described(spec)]
    loaded_gpus = [gpu for name in gpus for gpu in gpus_called(name)]
    lists = {"models": specs, "gpus": loaded_gpus, "methods": methods, "seq_lens": seq_lens}
    for parameter, values in lists.items():
        if not values:
            raise ConfigError(f"{setting(parameter)}: nothing to show")
    if not supported:
        raise UnsupportedError(f"{specs[0].name}: no block describes {specs[0].model_type!r}; `estimate` traces it")
    for method in methods:
        one_of(setting("methods"), method, METHODS)
    for parameter, numbers in (("seq_lens", seq_lens), ("micro_batch", [micro_batch or 1])):
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MAX_COUNT:
                raise ConfigError(f"{setting(parameter, number)}: expected whole numbers from 1 to {MAX_COUNT}")
    return TableRequest(
        unique(supported, lambda spec: spec.name),
        tuple(with_margin(gpu, confidence) for gpu in unique(loaded_gpus, lambda gpu: gpu.name)),
        tuple(dict.fromkeys(methods)),
        tuple(dict.fromkeys(seq_lens)),
        show,
        micro_batch or 1,
        job,
        tuple(dict.fromkeys(spec.name for spec in specs if not is_described(spec))),
    )


def models_called(name: str | ModelSpec) -> list[ModelSpec]:
    """The models of a name or a pattern.

    Raises:
        UnsupportedError: for one, named in full, that the analytic estimator does not support: a table is the
            same with and without torch.
        VramplanError: if there are none.
    """
    if isinstance(name, str) and _is_pattern(name):
        pattern = name.lower()
        names = [
            full_name
            for full_name in model_names()
            if any(fnmatchcase(part, pattern) for part in (full_name.lower(), _short(full_name).lower()))
        ]
        if not names:
            raise UnknownNameError("models", name, map(_short, model_names()), "no shipped model matches")
        return [load_spec(full_name) for full_name in names]
    spec = load_model(name)
    if not is_described(spec):
        raise UnsupportedError(f"{spec.name}: no block describes {spec.model_type!r}; `estimate` traces it")
    return [spec]


def gpus_called(name: str | Gpu) -> list[Gpu]:
    """The GPUs of a name or a pattern over short names.

    Raises:
        VramplanError: if there are none.
    """
    if isinstance(name, str) and _is_pattern(name):
        gpus = [gpu for gpu in all_gpus() if fnmatchcase(gpu.name, name.lower())]
        if not gpus:
            raise UnknownNameError("GPUs", name, [gpu.name for gpu in all_gpus()], "`vramplan gpus` lists all")
        return gpus
    return [load_gpu(name)]


def one_of(what: str, value: str, known: Iterable[str]) -> None:
    """Refuse a word that is not one of these.

    Raises:
        UnknownNameError: with the nearest.
    """
    if value not in known:
        raise UnknownNameError(what, value, known, f"known: {', '.join(known)}")


def digest(*values: object) -> str:
    """A short text that differs if the values do."""
    return blake2b(repr(values).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def unique(values: Sequence[Any], key: Callable[[Any], str]) -> tuple[Any, ...]:
    """Each once, in order."""
    return tuple({key(value): value for value in reversed(values)}.values())[::-1]


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")
