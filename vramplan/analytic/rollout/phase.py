"""Events in front of an optimizer step."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from vramplan.memory import passes
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import EMPTY_CACHE, Storage


class RolloutPhase(NamedTuple):
    """Events in front of an optimizer step, none of whose storages outlives it."""

    name: str
    kinds: list[Storage]
    kind_of: array[int]
    """The number of each storage's kind."""
    events: array[int]
    """Numbers of the phase's own storages."""
    needs: tuple[str, ...] = ("weights",)
    """What of the model is on the GPU meanwhile, of what may wait in host memory."""

    def record(self, record: Recorder, known: dict[int, int]) -> None:
        """Add the events to a run; `known` has the first kind of each phase that was added before."""
        record.enter(self.name)
        first = known.setdefault(id(self), len(record.kinds))
        if first == len(record.kinds):
            record.add_kinds(self.kinds)
        record.extend(self.events, record.splice(passes.shifted(self.kind_of, first)))

    def beside(self, storage: Storage) -> RolloutPhase:
        """The phase with a storage that lives from its beginning to its end."""
        number, kind = len(self.kind_of), len(self.kinds)
        return self._replace(
            kinds=[*self.kinds, storage],
            kind_of=self.kind_of + array("i", [kind]),
            events=array("i", [number, *self.events, ~number]),
        )

    def emptied(self) -> RolloutPhase:
        """The phase with ``torch.cuda.empty_cache`` behind it."""
        number, kind = len(self.kind_of), len(self.kinds)
        return self._replace(
            kinds=[*self.kinds, EMPTY_CACHE],
            kind_of=self.kind_of + array("i", [kind]),
            events=self.events + array("i", [number, ~number]),
        )


def emptied_cache(phase: str) -> RolloutPhase:
    """``torch.cuda.empty_cache`` in a phase."""
    return RolloutPhase(phase, [EMPTY_CACHE], array("i", [0]), array("i", [0, ~0]))


def at_once(phase: str, kinds: list[Storage]) -> RolloutPhase:
    """Storages that are all there at once, then none."""
    numbers = range(len(kinds))
    events = [*numbers, *(~number for number in reversed(numbers))]
    return RolloutPhase(phase, kinds, array("i", numbers), array("i", events))
