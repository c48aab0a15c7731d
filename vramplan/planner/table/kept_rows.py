"""Rows that are kept between runs, so that a table that grew takes only its new rows."""

from __future__ import annotations

import json
from functools import cached_property

from vramplan import disk_cache
from vramplan.inputs.load import other_models
from vramplan.planner.table.request import TableRequest, digest
from vramplan.planner.table.row import Place, Row
from vramplan.planner.table.row_data import from_data, to_data

KIND = "table-rows"


class KeptRows:
    """The rows of one table that are in :mod:`vramplan.disk_cache`."""

    def __init__(self, request: TableRequest) -> None:
        self.request = request

    def load(self, place: Place) -> Row | None:
        """A row; None if it is not kept."""
        content = disk_cache.load(KIND, self._key(place)) if disk_cache.is_enabled() else None
        if content is None:
            return None
        try:
            return from_data(json.loads(content), self.request)
        except (ValueError, RecursionError):
            return None

    def store(self, place: Place, row: Row) -> None:
        """Keep a row."""
        if disk_cache.is_enabled():
            content = json.dumps(to_data(row), separators=(",", ":"), ensure_ascii=False)
            disk_cache.store(KIND, self._key(place), content.encode())

    def _key(self, place: Place) -> str:
        request = self.request
        row = self._models[place.model], request.methods[place.method], request.lengths[place.length]
        return f"{self._common} {row}"

    @cached_property
    def _common(self) -> str:
        """What all rows depend on; the GPUs have their safety margin."""
        request = self.request
        return digest(
            request.cards,
            request.show,
            request.micro_batch_size,
            sorted(request.job.items()),
            other_models(request.job),
        )

    @cached_property
    def _models(self) -> list[str]:
        return [digest(spec) for spec in self.request.models]
