"""`vramplan adapt plan` and `vramplan adapt simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import (
    AsJson,
    Confidence,
    GpuName,
    LinkName,
    Model,
    Network,
    NoCache,
    Trust,
    between_commas,
    check_file,
    connected,
    keep_results,
    progress,
    say,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import BATCH, OUTPUT, RUN
from vramplan.cli.parameters import Argument, Option
from vramplan.errors import ConfigError

TIMES = 16
"""The largest global batch as a multiple of the first, if none is given."""

GlobalBatch = Annotated[
    int, Option(help="Samples behind one optimizer step as the run begins.", shows_default=False, panel=BATCH)
]
LargestGlobalBatch = Annotated[
    int | None, Option(help=f"The most that the run may grow to ({TIMES} times --global-batch).", panel=BATCH)
]


@with_job_flags
def plan(
    model: Model,
    gpu: GpuName,
    global_batch: GlobalBatch,
    largest_global_batch: LargestGlobalBatch = None,
    prefer: Annotated[
        str,
        Option(
            help="Which plan each batch uses: the largest micro-batch, the fastest, or the one with most headroom.",
            panel=BATCH,
            complete=completion.one_of("largest", "fastest", "headroom"),
        ),
    ] = "largest",
    confidence: Confidence = None,
    link: LinkName = None,
    network: Network = None,
    trust_remote_code: Trust = False,
    no_cache: NoCache = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """List the global batches that a run may grow through, each checked on the GPU."""
    from vramplan.adaptive.ladder import plan_ladder

    keep_results(not no_cache)
    with progress() as tell:
        found = plan_ladder(
            model,
            connected(gpu, link, network),
            global_batch,
            global_batch * TIMES if largest_global_batch is None else largest_global_batch,
            prefer=prefer,
            progress=tell,
            trust_remote_code=trust_remote_code,
            **sure(confidence),
            **given,
        )
    from vramplan.render import adapt as shown

    if as_json:
        from vramplan.render import json_output as as_text

        say(as_text.dumps(shown.plan_data(found)))
    else:
        from vramplan.render import terminal

        terminal.print_all(shown.plan(found, global_batch))
    return 0 if found.rungs else 1


def simulate(
    record: Annotated[
        Path, Argument(metavar="RECORD.jsonl", help="A recorded run: the file that a training loop's `record` names.")
    ],
    policy: Annotated[
        str,
        Option(
            help="Policies, with commas: noise-scale, norm-test, seesaw, schedule, plateau, constant.",
            panel=RUN,
            complete=completion.one_of("noise-scale", "norm-test", "seesaw", "schedule", "plateau", "constant"),
        ),
    ] = "noise-scale,norm-test,seesaw",
    global_batch: Annotated[
        int | None, Option(help="The batch to begin with (the record's first).", min=1, panel=BATCH)
    ] = None,
    largest_global_batch: Annotated[
        int | None, Option(help=f"The most to grow to ({TIMES} times the first).", min=1, panel=BATCH)
    ] = None,
    coupling: Annotated[
        str,
        Option(
            help="How the learning rate follows the batch: sqrt for Adam types, linear for SGD, none.",
            panel=RUN,
            complete=completion.one_of("sqrt", "linear", "none"),
        ),
    ] = "sqrt",
    dwell: Annotated[
        int | None,
        Option(help="Samples or tokens that a wish for another batch has to last (100 first batches).", panel=RUN),
    ] = None,
    half_life: Annotated[
        int | None,
        Option(help="Samples or tokens after which a norm has half its weight (100 first batches).", panel=RUN),
    ] = None,
    unit: Annotated[
        str,
        Option(
            help="Whether these and --schedule count samples or tokens.",
            panel=RUN,
            complete=completion.one_of("samples", "tokens"),
        ),
    ] = "samples",
    share: Annotated[float, Option(help="Share of the noise scale that the batch is to reach.", panel=RUN)] = 1.0,
    eta: Annotated[float, Option(help="The norm test's bound of noise against gradient.", panel=RUN)] = 0.5,
    schedule: Annotated[
        str | None,
        Option(help="Points of the policy schedule, POSITION:BATCH with commas: 0:8,4000:16.", panel=RUN),
    ] = None,
    plot: Annotated[
        Path | None, Option(help="Draw batch, learning rate and noise scale: FILE.svg or .png.", panel=OUTPUT)
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show what policies would have made of a run that was recorded."""
    check_file("--plot", plot, (".svg", ".png"))
    from vramplan.adaptive.compare import Question, simulations
    from vramplan.adaptive.observation import check_unit

    policies = tuple(dict.fromkeys(between_commas(policy)))
    if schedule is not None and "schedule" not in policies:
        raise ConfigError("--schedule is about the policy schedule: add it to --policy")
    if schedule is None and "schedule" in policies:
        raise ConfigError("--policy schedule: give its points, --schedule 0:8,4000:16")
    question = Question(
        record=record,
        policies=policies,
        global_batch=global_batch,
        largest_global_batch=largest_global_batch,
        times=TIMES,
        coupling=coupling,
        dwell=dwell,
        half_life=half_life,
        unit=check_unit(unit),
        share=share,
        eta=eta,
        points=() if schedule is None else _points(schedule),
    )
    found = simulations(question)
    if plot is not None:
        import vramplan.render.adapt_plot as as_picture

        as_picture.write(found, plot)
    from vramplan.render import adapt as shown

    if as_json:
        from vramplan.render import json_output as as_text

        say(as_text.dumps(shown.simulations_data(found)))
    else:
        from vramplan.render import terminal

        terminal.print_all(shown.simulations(found, record.name))
    return 0


def _points(text: str) -> tuple[tuple[int, int], ...]:
    points = []
    for word in between_commas(text):
        numbers = word.split(":")
        if len(numbers) != 2 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise ConfigError(f"--schedule {text}: expected POSITION:BATCH with commas, such as 0:8,4000:16")
        points.append((int(numbers[0]), int(numbers[1])))
    return tuple(points)
