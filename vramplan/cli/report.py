"""`vramplan report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import (
    JOB_FLAGS,
    Accumulation,
    AsJson,
    Confidence,
    GpuName,
    MicroBatch,
    Model,
    Trust,
    batch_of,
    between_commas,
    check_file,
    progress,
    say,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import BATCH, MODEL, OUTPUT
from vramplan.cli.parameters import Option
from vramplan.units import counted


@with_job_flags
def report(
    model: Model,
    gpu: GpuName,
    out: Annotated[Path, Option(help="The page: FILE.html.", shows_default=False, panel=OUTPUT)],
    micro_batch: MicroBatch = None,
    accumulation: Accumulation = None,
    global_batch: Annotated[
        int | None, Option(help="Samples behind one optimizer step (16 on each GPU).", panel=BATCH)
    ] = None,
    gpus: Annotated[
        str | None,
        Option(
            help="GPUs to choose from on the page: l40s,h100 (one of each usual size).",
            panel=MODEL,
            complete=completion.gpu_names,
        ),
    ] = None,
    confidence: Confidence = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Write an HTML page about a job: the verdict, where the memory goes, plans and GPUs to choose from."""
    from vramplan import atomic_write
    from vramplan.planner.report import build
    from vramplan.render import json_output as as_text
    from vramplan.render.report import page

    check_file("--out", out, (".html",))
    with progress() as tell:
        found = build(
            model,
            gpu,
            global_batch=global_batch,
            gpus=None if gpus is None else between_commas(gpus),
            progress=tell,
            trust_remote_code=trust_remote_code,
            **sure(confidence),
            **{**given, **batch_of(micro_batch, accumulation)},
        )
        words = _words(given) + ([] if confidence is None else ["--confidence", f"{confidence:g}"])
        tell("writing", 0.99)
        atomic_write.write(out, page(found, words))
    if as_json:
        say(as_text.dumps(as_text.estimate(found.start)))
    else:
        start = found.start
        batch = f"micro-batch {start.micro_batch_size} × {start.gradient_accumulation_steps}"
        say(f"{out}: {batch} on {found.search.card.title}, and {counted(len(found.others), 'other GPU')}")
    return 0 if found.start.fits else 1


def _words(given: dict[str, Any]) -> list[str]:
    """The job as flags; what has none needs the file that it came from."""
    flags = {flag.field or name: f"--{name.replace('_', '-')}" for name, flag in JOB_FLAGS.items()}
    words: list[str] = []
    for name, value in given.items():
        if name in flags:
            words += [flags[name], ",".join(value) if isinstance(value, list) else str(value)]
    return words
