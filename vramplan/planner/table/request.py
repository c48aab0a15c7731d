"""What a table is asked to show: names and patterns in, models and cards out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from vramplan.analytic.architectures.lookup import is_described
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError
from vramplan.inputs.catalog import all_gpus, load_spec, model_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import MAX_COUNT
from vramplan.inputs.load import load_gpu, load_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import CONFIDENCE, with_margin

METHODS = ("full", "lora", "qlora", "dora")


class Shown(NamedTuple):
    """Something that cells can say."""

    title: str
    mark: str
    """What stands where nothing fits, and that it does."""
    field: str
    """What a record calls the number."""
    takes_batch: bool
    """Whether the micro-batch is given, not looked for."""


SHOWN = {
    "max-batch": Shown("the largest micro-batch that fits", "0: does not fit", "max_micro_batch_size", False),
    "speed": Shown(
        "tokens/s of one card at the largest micro-batch that fits", "0: does not fit", "tokens_per_second", False
    ),
    "memory": Shown("GiB on the card", "*: does not fit", "device_total_bytes", True),
    "card": Shown("the smallest of these cards that fits", "-: none does", "device_total_bytes", True),
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
    """For `memory` and `card`."""
    job: Mapping[str, Any]
    """The rest of every cell's job."""
    left_out: tuple[str, ...] = ()
    """Models that a pattern matched and no block describes."""


def table_request(
    models: Sequence[str | ModelSpec],
    gpus: Sequence[str | Gpu],
    *,
    methods: Sequence[str] = ("lora",),
    seq_lens: Sequence[int] = (2048,),
    show: str = "max-batch",
    micro_batch: int | None = None,
    confidence: float = CONFIDENCE,
    **job: Any,
) -> TableRequest:
    """A table of these models on these cards; keyword arguments are fields of :class:`vramplan.Job`.

    Names with ``*``, ``?`` or ``[`` are patterns over the shipped models and cards.

    Raises:
        VramplanError: for a name that nothing matches, and a setting that is none.
    """
    models = [models] if isinstance(models, str) else models
    gpus = [gpus] if isinstance(gpus, str) else gpus
    one_of("--show", show, SHOWN)
    for field in OWN:
        if field in job:
            flags = {"method": "--methods", "sequence_length": "--seq-lens", "micro_batch_size": "--micro-batch"}
            raise ConfigError(f"{field}: in a table {f'give {flags[field]}' if field in flags else 'it is 1'}")
    if micro_batch is not None and not SHOWN[show].takes_batch:
        raise ConfigError(f"--micro-batch is what --show {show} looks for; it goes with memory and card")
    found = [one for name in models for one in models_called(name)]
    described = [one for one in found if is_described(one)]
    cards = [one for name in gpus for one in cards_called(name)]
    for flag, values in (("--models", found), ("--gpus", cards), ("--methods", methods), ("--seq-lens", seq_lens)):
        if not values:
            raise ConfigError(f"{flag}: nothing to show")
    if not described:
        raise UnsupportedError(f"{found[0].name}: no block describes {found[0].model_type!r}; `estimate` traces it")
    for method in methods:
        one_of("--methods", method, METHODS)
    for flag, numbers in (("--seq-lens", seq_lens), ("--micro-batch", [1 if micro_batch is None else micro_batch])):
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MAX_COUNT:
                raise ConfigError(f"{flag} {number}: expected whole numbers from 1 to {MAX_COUNT}")
    return TableRequest(
        unique(described, lambda one: one.name),
        tuple(with_margin(one, confidence) for one in unique(cards, lambda one: one.name)),
        tuple(dict.fromkeys(methods)),
        tuple(dict.fromkeys(seq_lens)),
        show,
        micro_batch or 1,
        job,
        tuple(dict.fromkeys(one.name for one in found if not is_described(one))),
    )


def models_called(name: str | ModelSpec) -> list[ModelSpec]:
    """The models of a name or a pattern.

    Raises:
        UnsupportedError: for one, named in full, that no block describes: a table is the same with and without torch.
        VramplanError: where there are none.
    """
    if isinstance(name, str) and _is_pattern(name):
        wanted = name.lower()
        matched = [
            one
            for one in model_names()
            if any(fnmatchcase(part, wanted) for part in (one.lower(), _short(one).lower()))
        ]
        if not matched:
            raise UnknownNameError("models", name, map(_short, model_names()), "no shipped model matches")
        return [load_spec(one) for one in matched]
    spec = load_model(name)
    if not is_described(spec):
        raise UnsupportedError(f"{spec.name}: no block describes {spec.model_type!r}; `estimate` traces it")
    return [spec]


def cards_called(name: str | Gpu) -> list[Gpu]:
    """The cards of a name or a pattern over short names.

    Raises:
        VramplanError: where there are none.
    """
    if isinstance(name, str) and _is_pattern(name):
        matched = [one for one in all_gpus() if fnmatchcase(one.name, name.lower())]
        if not matched:
            raise UnknownNameError("cards", name, [one.name for one in all_gpus()], "`vramplan gpus` lists all")
        return matched
    return [load_gpu(name)]


def one_of(flag: str, value: str, known: Iterable[str]) -> None:
    """Refuse a word that is none of these.

    Raises:
        UnknownNameError: with the nearest.
    """
    if value not in known:
        raise UnknownNameError(flag, value, known, f"known: {', '.join(known)}")


def unique(values: Sequence[Any], key: Callable[[Any], str]) -> tuple[Any, ...]:
    """Each once, in order."""
    return tuple({key(one): one for one in reversed(values)}.values())[::-1]


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")
