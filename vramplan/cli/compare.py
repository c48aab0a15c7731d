"""`vramplan compare`."""

from __future__ import annotations

from typing import Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import (
    Accumulation,
    AsJson,
    Confidence,
    LinkName,
    MicroBatch,
    Network,
    Trust,
    batch_of,
    between_commas,
    connected,
    progress,
    say,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import MODEL
from vramplan.cli.parameters import Argument, Option


@with_job_flags
def compare(
    targets: Annotated[
        list[str],
        Argument(metavar="A [B]", help="Two models, or two configurations; one, with two GPUs."),
    ],
    gpu: Annotated[
        str,
        Option(
            help="GPU by name, or auto; two of them for one A: rtx4090,a100-40gb.",
            shows_default=False,
            panel=MODEL,
            complete=completion.gpu_names,
        ),
    ],
    micro_batch: MicroBatch = None,
    accumulation: Accumulation = None,
    confidence: Confidence = None,
    link: LinkName = None,
    network: Network = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Compare two models, GPUs or configurations side by side."""
    from vramplan.planner import compare as comparing

    with progress() as tell:
        found = comparing.compare(
            targets,
            gpu=[connected(name, link, network) for name in between_commas(gpu)],
            progress=tell,
            trust_remote_code=trust_remote_code,
            **sure(confidence),
            **{**given, **batch_of(micro_batch, accumulation)},
        )
    from vramplan.render import compare as shown

    if as_json:
        from vramplan.render import json_output as as_text

        say(as_text.dumps(as_text.comparison(found)))
    else:
        from vramplan.render import terminal

        terminal.print_all(shown.answer(found))
    return 0 if all(side.fits for side in found.sides) else 1
