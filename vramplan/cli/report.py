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
from vramplan.cli.panels import BATCH, DATA, METHOD, MODEL, OUTPUT
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError
from vramplan.units import in_digits


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
    cards: Annotated[
        str | None,
        Option(
            help="GPUs to choose from on the page: l40s,h100 (one of each usual size).",
            panel=MODEL,
            complete=completion.gpu_names,
        ),
    ] = None,
    seq_lens: Annotated[
        str | None,
        Option(help="Lengths to choose from: 1024,4096 (half and double).", panel=DATA),
    ] = None,
    lora_ranks: Annotated[str | None, Option(help="Ranks to choose from (8,64).", panel=METHOD)] = None,
    image_sizes: Annotated[
        str | None,
        Option(help="Image sizes to choose from (448x448,1024x1024).", panel=DATA),
    ] = None,
    confidence: Confidence = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Write an interactive HTML page about a job: memory over the step, plans, what would help."""
    from vramplan import atomic_write
    from vramplan.planner import report as grid
    from vramplan.render import json_output as as_text
    from vramplan.render import report as as_page

    check_file("--out", out, (".html",))
    words = _words(given)
    with progress() as tell:
        found = grid.build(
            model,
            gpu,
            global_batch=global_batch,
            cards=_list(cards),
            sequence_lengths=_numbers("--seq-lens", seq_lens),
            ranks=_numbers("--lora-ranks", lora_ranks),
            image_sizes=_list(image_sizes),
            progress=tell,
            trust_remote_code=trust_remote_code,
            **sure(confidence),
            **{**given, **batch_of(micro_batch, accumulation)},
        )
    if confidence is not None:
        words += ["--confidence", f"{confidence:g}"]
    atomic_write.write(out, as_page.page(found, words))
    if as_json:
        say(as_text.dumps(as_text.estimate(found.start)))
    else:
        start = found.start
        batch = f"micro-batch {start.micro_batch_size} x {start.gradient_accumulation_steps} on {found.cards[0].title}"
        say(f"{out}: {len(found.choices)} choices on {len(found.cards)} cards; it starts at {batch}")
    return 0 if found.start.fits else 1


def _list(given: str | None) -> list[str] | None:
    return None if given is None else between_commas(given)


def _numbers(flag: str, given: str | None) -> list[int] | None:
    words = _list(in_digits(given, 1024) if given else given)
    if words is None:
        return None
    if not all(word.isdecimal() and int(word) for word in words):
        raise ConfigError(f"{flag} {given}: expected whole numbers, such as 1024,4096")
    return [int(word) for word in words]


VARIED = (
    "sequence_length",
    "lora_rank",
    "checkpointing",
    "image_size",
    "micro_batch_size",
    "gradient_accumulation_steps",
)
"""Settings that the page's own controls give."""


def _words(given: dict[str, Any]) -> list[str]:
    """The rest of the job as flags; what has none needs the file that it came from."""
    flags = {flag.field or name: f"--{name.replace('_', '-')}" for name, flag in JOB_FLAGS.items()}
    words: list[str] = []
    for name, value in given.items():
        if name in flags and name not in VARIED:
            words += [flags[name], ",".join(value) if isinstance(value, list) else str(value)]
    return words + (["--job", "FILE"] if any(name not in flags and name not in VARIED for name in given) else [])
