"""`vramplan estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import (
    Accumulation,
    AsJson,
    Confidence,
    GpuName,
    LinkName,
    MicroBatch,
    Model,
    Network,
    PlatformName,
    Trust,
    Verbose,
    batch_of,
    check_file,
    connected,
    progress,
    say,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import AFTER, MODEL, OUTPUT
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError


@with_job_flags
def estimate(
    model: Model,
    gpu: GpuName,
    platform: PlatformName = None,
    micro_batch: MicroBatch = None,
    accumulation: Accumulation = None,
    by: Annotated[
        str | None,
        Option(
            help="Estimator: analytic, or trace, which runs the real model (analytic if it supports the architecture).",
            panel=MODEL,
            complete=completion.one_of("analytic", "trace"),
        ),
    ] = None,
    explain: Annotated[
        bool,
        Option("--explain", help="List every tensor at the peak, and all assumptions.", panel=OUTPUT),
    ] = False,
    plot: Annotated[
        Path | None,
        Option(help="Draw memory over the step: FILE.svg, .png or .html.", panel=OUTPUT),
    ] = None,
    snapshot: Annotated[
        Path | None,
        Option(help="Write FILE.pickle for PyTorch's memory viewer.", panel=OUTPUT),
    ] = None,
    generate_tokens: Annotated[
        int | None,
        Option(
            "--generate-tokens",
            help="Also estimate loading the model on one GPU and generating this many tokens with transformers.",
            panel=AFTER,
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        Option("--prompt-tokens", help="Tokens of each prompt, images included (as --seq-len).", panel=AFTER),
    ] = None,
    generate_batch: Annotated[
        int | None, Option("--generate-batch", help="Prompts to generate for at a time (1).", panel=AFTER)
    ] = None,
    confidence: Confidence = None,
    link: LinkName = None,
    network: Network = None,
    trust_remote_code: Trust = False,
    for_framework: Annotated[
        str | None,
        Option(
            "--for",
            help="Print the job to paste, for swift, llamafactory, axolotl, trl ...",
            panel=OUTPUT,
            complete=completion.frameworks_and_launchers,
        ),
    ] = None,
    html: Annotated[bool, Option("--html", help="Print HTML as notebooks show it.", panel=OUTPUT)] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Estimate the GPU memory that one training job needs."""
    from vramplan.inputs.load import load_gpu, load_model
    from vramplan.planner import after_training
    from vramplan.planner.estimate import estimate as run_estimate

    check_file("--plot", plot, (".svg", ".png", ".html"))
    check_file("--snapshot", snapshot, (".pickle", ".pkl"))
    if sum((html, as_json, for_framework is not None)) > 1:
        raise ConfigError("--html, --json and --for are forms of the same answer: give one")
    if generate_tokens is None and (prompt_tokens, generate_batch) != (None, None):
        raise ConfigError("--prompt-tokens and --generate-batch need --generate-tokens")
    card = load_gpu(connected(load_gpu(gpu, platform), link, network))
    spec = load_model(model)
    given |= batch_of(micro_batch, accumulation)
    with progress() as tell:
        found = run_estimate(
            spec, card, by=by, progress=tell, trust_remote_code=trust_remote_code, **sure(confidence), **given
        )
    generated = None
    if generate_tokens is not None:
        batch = 1 if generate_batch is None else generate_batch
        generated = after_training.generation(
            spec, card, found.job, generate_tokens, prompt_tokens, batch, **sure(confidence)
        )
    host = after_training.host(spec, found)
    if plot is not None:
        import vramplan.render.plot as as_picture

        as_picture.write(found, plot)
    if snapshot is not None:
        import vramplan.render.memory_snapshot as as_snapshot

        as_snapshot.write(found, snapshot)
    if for_framework is not None:
        from vramplan.cli.suggest_hardware import paste

        return paste(for_framework, model, found.job, card, confidence)
    if html:
        from vramplan.render.web.answer import fragment, of_estimate

        say(fragment(of_estimate(found)))
    elif as_json:
        from vramplan.render import json_output as as_text

        say(as_text.dumps(as_text.estimate_answer(found, host, generated)))
    else:
        from vramplan.render import estimate as as_answer
        from vramplan.render import terminal

        terminal.print_all(as_answer.answer(found, card, verbose, explain, host, generated))
    return 0 if found.fits and (generated is None or generated.fits) else 1
