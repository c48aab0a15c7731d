"""A committed table of traces of small models: one row for each family and job, of :data:`tests.matrix.COLUMNS`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests import matrix
from tests.helpers import card_of
from vramplan.analytic import estimator
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec


class TracedTable(NamedTuple):
    """The traces of some families' jobs."""

    path: Path
    spec_for: Callable[[str], ModelSpec]
    """Gives a family's small model."""
    cases: Callable[[], Iterator[tuple[str, Job]]]
    """Gives families and jobs."""

    def load(self) -> dict[str, list[Any]]:
        """The committed rows by name."""
        return json.loads(self.path.read_text())["rows"] if self.path.exists() else {}

    def analytic(self, family: str, job: Job) -> list[Any]:
        """The row that the estimate gives, without the name."""
        estimate = estimator.estimate(self.spec_for(family), job, card_of())
        return matrix.row_of(matrix.Case(family, "", job), estimate)[1:]

    def jobs_of(self, family: str) -> list[Job]:
        """The jobs that a family was traced with."""
        return [job for name, job in self.cases() if name == family]

    def check(
        self,
        family: str,
        job: Job,
        rows: Mapping[str, list[Any]],
        tensors: float = 2e-3,
        phase: float = 0.015,
        flops: float = 1e-3,
    ) -> float:
        """Compare every phase's peak, the operations and the parameters with a trace; the allocated peak's error.

        `rows` are the table's; `tensors` and `phase` are the largest errors of the live tensors and of a phase.
        """
        found, traced = self.analytic(family, job), rows[name_of(family, job)]
        of = dict(zip(matrix.COLUMNS[1:], (a / b - 1 for a, b in zip(found, traced, strict=True)), strict=True))
        assert abs(of["tensors"]) <= tensors, (job, of)
        assert all(abs(of[name]) <= phase for name in ("allocated", *matrix.PHASES)), (job, of)
        assert abs(of["flops"]) <= flops, (job, of)
        assert found[7:] == traced[7:], "parameters"
        return float(abs(of["allocated"]))

    def write(self) -> None:
        """Trace what is missing, and write the table."""
        from vramplan.torch_backend import tracing, versions

        rows = self.load()
        for family, job in self.cases():
            name = name_of(family, job)
            if name not in rows:
                estimate = tracing().estimate(self.spec_for(family), job, card_of())
                rows[name] = matrix.row_of(matrix.Case(family, "", job), estimate)[1:]
        wanted = dict.fromkeys(name_of(*case) for case in self.cases())
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in wanted)
        columns = json.dumps(matrix.COLUMNS[1:])
        self.path.write_text(f'{{"by": {json.dumps(versions())},\n"columns": {columns},\n"rows": {{\n{lines}\n}}}}\n')


def name_of(family: str, job: Job) -> str:
    """What the table calls a case."""
    return json.dumps([family, job.model_dump(mode="json", exclude_defaults=True)])
