"""How long rows take beside each other, to share them evenly."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from vramplan.inputs.model_spec import LAYERS
from vramplan.planner.table.request import TableRequest
from vramplan.planner.table.row import Place, places_of

METHOD_EFFORT = {"full": 1.0, "lora": 2.0, "qlora": 2.75, "dora": 3.0}
"""Time of a row with each method, as multiples of full fine-tuning's: means of 76 rows of 70 GPUs."""
EFFORT_OF_ANY = 20
"""What every row takes, as a number of layers."""


def efforts(request: TableRequest) -> dict[Place, float]:
    """The effort of each row, the largest first."""
    layers = [_layers(spec.config) for spec in request.models]
    effort = {
        place: (EFFORT_OF_ANY + layers[place.model]) * METHOD_EFFORT[request.methods[place.method]]
        for place in places_of(request)
    }
    return dict(sorted(effort.items(), key=lambda item: -item[1]))


def by_effort(request: TableRequest, places: Iterable[Place]) -> list[Place]:
    """These rows, those that take longest first, so that no process is left with a long one at the end."""
    wanted = set(places)
    return [place for place in efforts(request) if place in wanted]


def share(request: TableRequest, number: int, count: int) -> list[Place]:
    """One of `count` shares of all rows that take about equally long; `number` counts from 1.

    The next longest row always goes to the share that has least.
    """
    loads = [(0.0, each) for each in range(1, count + 1)]
    mine = []
    for place, effort in efforts(request).items():
        load, lightest = loads[0]
        heapq.heapreplace(loads, (load + effort, lightest))
        if lightest == number:
            mine.append(place)
    return sorted(mine)


def _layers(config: Mapping[str, Any]) -> int:
    """Layers of all the stacks that a configuration names."""
    inner = sum(_layers(value) for value in config.values() if isinstance(value, Mapping))
    return inner + sum(value for key, value in config.items() if key in LAYERS and type(value) is int)
