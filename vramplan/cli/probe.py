"""`vramplan probe`, and the flags of real runs that other commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import (
    Accumulation,
    AsJson,
    Device,
    MaxRuns,
    MicroBatch,
    Model,
    Record,
    Timeout,
    Trust,
    batch_of,
    progress,
    say,
    typed,
    with_job_flags,
)
from vramplan.cli.panels import BATCH, MODEL, REAL
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError, UnsupportedError, setting

AsCard = Annotated[
    str | None,
    Option(
        help="A smaller GPU that this one stands in for: PyTorch is limited to its memory.",
        panel=MODEL,
        complete=completion.gpu_names,
    ),
]


@contextmanager
def gpu_is_as_card() -> Iterator[None]:
    """Inside, errors about the parameter `gpu` name the flag --as-card instead of --gpu."""
    try:
        yield
    except (ConfigError, UnsupportedError) as error:
        message = error.spelled(lambda name, value: setting("as_card" if name == "gpu" else name, value))
        raise type(error)(message) from error


@with_job_flags
def probe(
    model: Model,
    as_card: AsCard = None,
    micro_batch: MicroBatch = None,
    accumulation: Accumulation = None,
    steps: Annotated[int, Option(help="Optimizer steps to run; the first warms up.", panel=REAL)] = 3,
    find_max: Annotated[
        bool, Option("--find-max", help="Find the largest micro-batch that runs.", panel=BATCH)
    ] = False,
    max_runs: MaxRuns = None,
    device: Device = None,
    timeout: Timeout = None,
    record: Record = None,
    history: Annotated[
        bool,
        Option("--history", help="With --record: every allocation and free, too.", panel=REAL),
    ] = False,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Measure a job on this machine's GPU, with random weights, beside its estimate."""
    from vramplan.measurements import probe as probing
    from vramplan.measurements.subprocess_runner import is_torchrun

    job = given | batch_of(micro_batch, accumulation)
    with progress() as tell:
        with gpu_is_as_card():
            probe_device = probing.probe_device(
                as_card,
                steps=steps,
                history=history,
                trust_remote_code=trust_remote_code,
                progress=tell,
                **typed(device=device, timeout=timeout, max_runs=max_runs, record=record),
            )
        if find_max:
            largest = probing.find_max(model, on=probe_device, **job)
        else:
            run = probing.probe(model, on=probe_device, **job)
    if is_torchrun() and int(os.environ["RANK"]) and run.fits:
        return 0  # the first rank prints for all; a rank that ran out of memory prints for itself
    if as_json:
        from vramplan.render import json_output, probe_json

        say(json_output.dumps(probe_json.largest(largest) if find_max else probe_json.probe_run(run)))
    else:
        from vramplan.render import probe as render
        from vramplan.render import terminal

        terminal.print_all(render.largest(largest) if find_max else render.tried(run))
    probe_device.check_recorded()
    return 0 if (largest.micro_batch_size if find_max else run.fits) else 1
