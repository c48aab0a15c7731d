"""`vramplan oom`: a log whose run ran out of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vramplan.cli import completion
from vramplan.cli.options import AsJson, Confidence, Verbose, progress, say, sure, typed
from vramplan.cli.panels import DATA, MODEL, SEVERAL
from vramplan.cli.parameters import Argument, Option


def oom(
    log: Annotated[Path, Argument(metavar="LOG", help="The file that the run printed to; - reads standard input.")],
    config: Annotated[
        Path | None,
        Option(help="The run's configuration or script: finds the tensor, and the changes that fit.", panel=MODEL),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(help="The GPU (the one whose memory the message tells).", panel=MODEL, complete=completion.gpu_names),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            help="The model, in place of the one that the configuration names.",
            panel=MODEL,
            complete=completion.model_names,
        ),
    ] = None,
    num_gpus: Annotated[
        int | None, Option(help="GPUs of the machine, if the configuration does not say.", min=1, panel=SEVERAL)
    ] = None,
    seq_len: Annotated[
        int | None, Option(help="Tokens of the longest sample, if fewer than the limit.", min=1, panel=DATA)
    ] = None,
    confidence: Confidence = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> int:
    """Explain why a run ran out of memory, from its log: which tensor, why at that step, what to change."""
    from vramplan.planner.out_of_memory import explain

    settings = typed(model=model, num_gpus=num_gpus, sequence_length=seq_len)
    with progress() as tell:
        found = explain(
            log, None if config is None else str(config), gpu, progress=tell, **settings, **sure(confidence)
        )
    if as_json:
        from vramplan.render.json_output import dumps
        from vramplan.render.oom_json import explanation

        say(dumps(explanation(found)))
    else:
        from vramplan.render import out_of_memory, terminal

        terminal.print_all(out_of_memory.answer(found, verbose))
    return 0
