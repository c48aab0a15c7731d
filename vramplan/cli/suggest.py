"""`vramplan suggest`."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vramplan.cli import completion
from vramplan.cli.options import (
    AsJson,
    Confidence,
    Device,
    LinkName,
    MaxRuns,
    Model,
    Network,
    NoCache,
    Record,
    Timeout,
    Trust,
    Verbose,
    connected,
    keep_results,
    progress,
    say,
    sure,
    typed,
    with_job_flags,
)
from vramplan.cli.panels import BATCH, MODEL, OUTPUT, REAL, RUN, SEVERAL
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError

if TYPE_CHECKING:
    from vramplan.planner.search_result import Search

HTML = ("answer", "plan", "row")
"""What `--html` prints: the whole answer, without changes that would help, the row of a table of GPUs."""


@partial(with_job_flags, without=("num_gpus",))
def suggest(
    model: Model,
    gpu: Annotated[
        str,
        Option(
            help="GPU by name or memory (24GB), auto for the one in this machine, several with commas, or any for the"
            " whole catalogue; `vramplan gpus` lists them.",
            shows_default=False,
            panel=MODEL,
            complete=completion.gpu_names,
        ),
    ],
    global_batch: Annotated[
        int | None, Option(help="Samples behind one optimizer step.", shows_default=False, panel=BATCH)
    ] = None,
    tokens: Annotated[
        bool,
        Option(
            "--tokens",
            help="Instead: the most tokens of a micro-batch, for samples that differ in length (up to --seq-len).",
            panel=BATCH,
        ),
    ] = False,
    global_tokens: Annotated[
        int | None, Option(help="Tokens behind one optimizer step, with --tokens: adds the accumulation.", panel=BATCH)
    ] = None,
    no_expandable_segments: Annotated[
        bool,
        Option(
            "--no-expandable-segments",
            help="With --tokens: for PyTorch's default allocator, which holds fewer tokens if lengths vary.",
            panel=BATCH,
        ),
    ] = False,
    num_gpus: Annotated[
        str | None,
        Option(
            help="GPUs, or auto for the fewest, the fastest and the cheapest number (1; auto for several --gpu).",
            shows_default=False,
            panel=SEVERAL,
            complete=completion.one_of("auto"),
        ),
    ] = None,
    max_gpus: Annotated[int | None, Option(help="Most GPUs that --num-gpus auto tries (8).", panel=SEVERAL)] = None,
    max_price: Annotated[
        float | None, Option(help="Highest price per hour of all GPUs together, with --num-gpus auto.", panel=RUN)
    ] = None,
    prices: Annotated[
        Path | None,
        Option(
            help="A TOML file with prices per GPU-hour, [prices] rtx4090 = 0.40, with --num-gpus auto (vramplan's dated"
            " list).",
            panel=RUN,
        ),
    ] = None,
    tokens_total: Annotated[
        int | None, Option(help="Tokens of the whole run, instead of --samples.", panel=RUN)
    ] = None,
    samples: Annotated[
        int | None, Option(help="Samples in the data set: adds the steps and the time of the run.", panel=RUN)
    ] = None,
    epochs: Annotated[float, Option(help="Passes over the data set.", panel=RUN)] = 1.0,
    warmup_ratio: Annotated[
        float | None, Option(help="Share of the optimizer steps that warm up: adds their number.", panel=RUN)
    ] = None,
    base_lr: Annotated[
        float | None, Option(help="A learning rate that works, to scale to this batch.", panel=RUN)
    ] = None,
    base_batch: Annotated[int | None, Option(help="The global batch that it works for.", panel=RUN)] = None,
    prefer: Annotated[
        str,
        Option(
            help="Which plan to use: the largest micro-batch, the fastest, or the one with most headroom.",
            panel=BATCH,
            complete=completion.one_of("largest", "fastest", "headroom"),
        ),
    ] = "largest",
    probe: Annotated[
        bool,
        Option("--probe", help="Run the plan on this machine's GPU; correct it if it fails.", panel=REAL),
    ] = False,
    device: Device = None,
    max_runs: MaxRuns = None,
    timeout: Timeout = None,
    record: Record = None,
    confidence: Confidence = None,
    link: LinkName = None,
    network: Network = None,
    for_framework: Annotated[
        str | None,
        Option(
            "--for",
            help="Print the plan to paste, for swift, llamafactory, axolotl, trl, torchtune ...; or its GPUs, for"
            " skypilot, dstack.",
            panel=OUTPUT,
            complete=completion.frameworks_and_launchers,
        ),
    ] = None,
    solve: Annotated[
        str | None,
        Option(
            help="First find the largest that fits: image-size, max-pixels, max-tiles, seq-len or vllm-share.",
            panel=BATCH,
            complete=completion.one_of("image-size", "max-pixels", "max-tiles", "seq-len", "vllm-share"),
        ),
    ] = None,
    trust_remote_code: Trust = False,
    no_cache: NoCache = False,
    html: Annotated[
        str | None,
        Option(
            "--html",
            help="Print HTML as notebooks show it: answer; plan, without changes; row, of a table of GPUs.",
            panel=OUTPUT,
            complete=completion.one_of(*HTML),
        ),
    ] = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Find the micro-batch and gradient accumulation that reach a global batch on a GPU."""
    keep_results(not no_cache)
    if html is not None and (html not in HTML or tokens or probe or as_json or for_framework is not None):
        raise ConfigError(
            f"--html {html}: expected {', '.join(HTML)}, and no --tokens, --probe, --json or --for beside"
        )
    if tokens:
        from vramplan.cli.suggest_tokens import suggest_tokens

        others = {
            "--global-batch": global_batch, "--max-gpus": max_gpus, "--max-price": max_price, "--prices": prices,
            "--tokens-total": tokens_total, "--samples": samples, "--warmup-ratio": warmup_ratio, "--solve": solve,
            "--base-lr": base_lr, "--base-batch": base_batch, "--probe": probe or None, "--device": device,
            "--max-runs": max_runs, "--timeout": timeout, "--record": record,
            "--prefer": None if prefer == "largest" else prefer, "--epochs": None if epochs == 1.0 else epochs,
        }  # fmt: skip
        return suggest_tokens(
            model, connected(gpu, link, network), num_gpus, global_tokens, no_expandable_segments, others, given=given,
            confidence=confidence, for_framework=for_framework, verbose=verbose, as_json=as_json,
        )  # fmt: skip
    for flag, is_given in (
        ("--global-tokens", global_tokens is not None),
        ("--no-expandable-segments", no_expandable_segments),
    ):
        if is_given:
            raise ConfigError(f"{flag} is about token budgets: add --tokens")
    if global_batch is None:
        raise ConfigError("give --global-batch, the samples behind one optimizer step, or --tokens for a token budget")
    for flag, value in (("--device", device), ("--max-runs", max_runs), ("--timeout", timeout), ("--record", record)):
        if value is not None and not probe:
            raise ConfigError(f"{flag} is about real runs: add --probe")
    count = None if num_gpus is None or num_gpus.lower() == "auto" else _number(num_gpus)
    if "," in gpu or gpu.strip().lower() == "any" or (num_gpus is not None and count is None):
        from vramplan.cli.suggest_hardware import suggest_hardware

        refused = {
            "--probe": probe or None, "--solve": solve, "--base-lr": base_lr, "--base-batch": base_batch,
        }  # fmt: skip
        for flag, value in refused.items():
            if value is not None:
                raise ConfigError(f"{flag} is about one plan: give one --gpu and a number for --num-gpus")
        from_file = given.pop("num_gpus", None)
        return suggest_hardware(
            model, gpu, global_batch, from_file if num_gpus is None else count, given=given, link=link,
            network=network, max_gpus=max_gpus, max_price=max_price, prices=prices, samples=samples, epochs=epochs,
            tokens_total=tokens_total, warmup_ratio=warmup_ratio, prefer=prefer, confidence=confidence,
            for_framework=for_framework, verbose=verbose, as_json=as_json,
        )  # fmt: skip
    choices = {"--max-gpus": max_gpus, "--max-price": max_price, "--prices": prices}
    for flag, choice in choices.items():
        if choice is not None:
            raise ConfigError(f"{flag} is about a choice of hardware: add --num-gpus auto")
    if count is not None:
        given = {**given, "num_gpus": count}
    from vramplan.inputs.load import load_gpu
    from vramplan.planner.kept_search import suggest as kept_search
    from vramplan.planner.search_result import Run

    chosen_gpu = connected(gpu, link, network)
    search_batches = kept_search
    if html is not None:  # kept results have no timeline to draw
        from vramplan.planner.suggest import suggest as search_batches
    with progress() as tell:
        on = None
        if probe:
            from vramplan.measurements.probe import probe_device

            limits = typed(device=device, timeout=timeout, max_runs=max_runs, record=record)
            on = probe_device(chosen_gpu, progress=tell, trust_remote_code=trust_remote_code, **limits)
        found = search_batches(
            model,
            chosen_gpu if on is None else on.gpu,
            global_batch,
            solve=solve,
            samples=samples,
            epochs=epochs,
            base_lr=base_lr,
            base_batch=base_batch,
            tokens_total=tokens_total,
            warmup_ratio=warmup_ratio,
            prefer=prefer,
            progress=tell,
            trust_remote_code=trust_remote_code,
            **({} if html in (None, "answer") else {"advice": False}),
            **sure(confidence),
            **given,
        )
        verified = None
        if on is not None:
            from vramplan.measurements.probe import prove
            from vramplan.measurements.verify import can_be_proved

            if can_be_proved(found):
                verified = prove(model, found, on=on)
    run = Run(samples, epochs, tokens_total)
    if html is not None:
        say(_html(found, html))
        return 0 if found.recommended else 1
    if for_framework is not None and found.recommended is not None:
        chosen = (verified.plan if verified is not None else None) or found.recommended
        from vramplan.cli.suggest_hardware import paste

        on_gpu = load_gpu(gpu) if on is None else on.gpu
        return paste(for_framework, model, chosen.estimate.job, on_gpu, confidence)
    if as_json:
        from vramplan.render import json_output as as_text

        shown = as_text.search(found, run)
        if found.solved is not None:
            shown["solved"] = as_text.solved(found.solved)
        if verified is not None:
            from vramplan.render import probe_json

            shown["verified"] = probe_json.verified(verified)
        say(as_text.dumps(shown))
    else:
        from vramplan.render import suggest as as_answer
        from vramplan.render import terminal

        # what is not to be pasted does not go where that would
        with nullcontext() if for_framework is None else redirect_stdout(sys.stderr):
            if found.solved is not None:
                from vramplan.render import images

                terminal.print_all(images.solved(found.solved), "")
            terminal.print_all(as_answer.answer(found, run, verbose))
            if verified is not None:
                from vramplan.render import probe as as_proof

                terminal.print_all(as_proof.verified(verified))
    if on is not None:
        on.check_recorded()
    return 0 if (verified.plan if verified is not None else found.recommended) else 1


def _html(found: Search, part: str) -> str:
    """What `--html` prints."""
    if part == "row":
        from vramplan.render.web.matrix import micro_batches, row

        return row(found.card, found, micro_batches(found))
    from vramplan.render.web.answer import fragment, of_search

    return fragment(of_search(found))


def _number(num_gpus: str) -> int:
    try:
        return int(num_gpus)
    except ValueError:
        raise ConfigError(f"--num-gpus {num_gpus}: expected a whole number, or auto") from None
