"""Models that a script loads beside those that its trainer gets: not counted, and said."""

from __future__ import annotations

from itertools import takewhile

from vramplan.frameworks.readers.python_adapters import class_of
from vramplan.frameworks.readers.python_model import NO_MODELS
from vramplan.frameworks.readers.python_trainer import Run
from vramplan.frameworks.settings import Note
from vramplan.frameworks.syntax.python_ast import Call, Script, Thing

LOADERS = ("SentenceTransformer", "CrossEncoder", "SparseEncoder", "pipeline", "LLM")
"""Classes and functions that load a model by its name: sentence-transformers', transformers', vLLM's."""
ASIDE = (*NO_MODELS, "Scheduler", "ImageProcessorFast", "VideoProcessorFast")
"""Ends of the names of classes whose from_pretrained loads no model."""


def notes(script: Script, run: Run) -> list[Note]:
    """A doubt for each model that is loaded before the training and that the trainer does not get."""
    if run.trainer is None:
        return []
    used = _places(run.trainer, set())
    before = takewhile(lambda call: not (call.last == "train" and call.place in _trainings(script)), script.calls)
    loads = {call.place: call for call in before if _loads(call) and call.place not in used}
    return [
        Note("doubt", place, f"loads {_shown(call)} beside it, which is not counted") for place, call in loads.items()
    ]


def _trainings(script: Script) -> set[str]:
    return {training.place for training in script.trainings}


def _loads(call: Call) -> bool:
    if call.last in ("from_pretrained", "from_config"):
        return not class_of(call).endswith(ASIDE)
    return call.last in LOADERS


def _shown(call: Call) -> str:
    owner = class_of(call) if call.last.startswith("from_") else call.last
    return f"a model ({owner})" if owner else "a model"


def _places(thing: Thing, done: set[int]) -> set[str]:
    """Where a trainer and all that it got were made."""
    if id(thing) in done:
        return set()
    done.add(id(thing))
    places = {thing.call.place}
    for parts in thing.parts.values():
        for part in parts:
            places |= _places(part, done)
    return places


__all__ = ["notes"]
