"""What commands have in common: arguments, the flags of a job, progress."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from vramplan.errors import ConfigError

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A shipped name, a Hub id, a folder, a config.json or package.module:function."
    ),
]
GpuName = Annotated[str, typer.Option(help="Card by name, or auto for the one in this box.", show_default=False)]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let traces and probes run code that comes with the model.")
]
MicroBatch = Annotated[int | None, typer.Option("--micro-batch", help="Samples one card takes in one forward (1).")]
Accumulation = Annotated[
    int | None, typer.Option("--accumulation", help="Micro-batches behind one optimizer step (1).")
]
Device = Annotated[str | None, typer.Option(help="cuda; cpu: real steps on the host, watched by tensor (cuda).")]
MaxRuns = Annotated[int | None, typer.Option(help="Real runs that one answer may take (8).")]
Timeout = Annotated[float | None, typer.Option(help="Seconds that one run may take (600).")]
Record = Annotated[Path | None, typer.Option(help="Folder to keep each run in, as one JSON file.")]
Confidence = Annotated[
    float | None, typer.Option(help="How sure a verdict is to be, which sets the safety margin; 0 for none (0.9).")
]
SECONDS_BETWEEN_LINES = 30
"""Of progress, where there is no terminal."""
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="List all assumptions and details.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Flag(NamedTuple):
    """A flag that says something of the job; `field` is what :class:`vramplan.Job` calls it."""

    type: Any
    help: str
    field: str = ""


JOB_FLAGS = {
    "num_gpus": Flag(int, "Cards (1); see --strategy."),
    "method": Flag(str, "full; lora; dora; qlora, which is lora with --quantize nf4 (lora)."),
    "lora_rank": Flag(int, "Rank of the adapters (8)."),
    "lora_targets": Flag(str, "all-linear, or names of layers: q_proj,v_proj (all-linear)."),
    "lora_dropout": Flag(float, "Dropout before each adapter (0)."),
    "lora_dtype": Flag(str, "Stored dtype of adapters: fp32, bf16, fp16 (fp32, as PEFT)."),
    "dtype": Flag(str, "Stored dtype of the weights: bf16, fp16, fp32 (bf16)."),
    "autocast": Flag(str, "torch.autocast: none, bf16, fp16 (as the weights)."),
    "quantize": Flag(str, "nf4, int8: frozen linear layers in four or eight bits, by bitsandbytes (none)."),
    "optimizer": Flag(str, "transformers' optim name (adamw_torch_fused)."),
    "seq_len": Flag(int, "Tokens in each sample (2048).", "sequence_length"),
    "lengths": Flag(
        str,
        "Where samples differ in length: tokens of the shortest to the longest, 128-2048, or of each, 300,1200,2048;"
        " what torch caches by the time the longest comes is counted (all as long as --seq-len).",
    ),
    "target_len": Flag(int, "Tokens of a T5 decoder's labels (128, or --seq-len if shorter).", "target_length"),
    "images": Flag(int, "Images in each sample (1 where the model sees); their tokens are part of --seq-len."),
    "videos": Flag(int, "Videos in each sample, instead of images (0)."),
    "frames": Flag(int, "Frames of each video that enter the processor, after sampling (16)."),
    "image_size": Flag(
        str, "Width and height in pixels of every image (1024x1024), or of every frame of a video (640x360)."
    ),
    "min_pixels": Flag(
        int, "Least pixels the processor enlarges an image to; of videos see --max-pixels (the model's own)."
    ),
    "max_pixels": Flag(
        int,
        "Most pixels the processor leaves of an image, of a frame (Qwen2-VL, 2.5), of all frames (the model's own).",
    ),
    "max_tiles": Flag(
        int, "Most tiles the processor cuts an image into (the model's own); Gemma 3: pan and scan, with so many crops."
    ),
    "vision": Flag(str, "The vision tower: frozen; train with --method full; lora (frozen)."),
    "projector": Flag(str, "The same of what leads from it to the language model (frozen)."),
    "batches": Flag(str, "unpadded, padded or packed samples (unpadded)."),
    "checkpointing": Flag(str, "Activation checkpointing: full or none (full)."),
    "attention": Flag(str, "sdpa, flash or eager (sdpa)."),
    "loss": Flag(
        str, "standard, sliced (transformers before 4.49), sections (torchtune), liger, cut or chunked (standard)."
    ),
    "loop": Flag(str, "trainer (transformers' Trainer) or plain (trainer)."),
    "strategy": Flag(str, "How cards share the work: ddp, fsdp, zero0, zero1, zero2, zero3, device_map (ddp)."),
    "offload": Flag(str, "What the host keeps under ZeRO and FSDP: none, optimizer, all (none)."),
    "job": Flag(Path, "A JSON file with more settings of the job."),
}
"""The flags that `suggest` and `estimate` share; what is not given is completed by
:func:`vramplan.planner.job_defaults.complete_job`."""


def with_job_flags(command: Callable[..., None], without: tuple[str, ...] = ()) -> Callable[..., None]:
    """`command` with the job's flags added but those `without`; it gets them as one dictionary, `given`."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[flag.type | None, typer.Option(help=flag.help, show_default=False)],
        )
        for name, flag in JOB_FLAGS.items()
        if name not in without
    ]
    mine = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "given"]

    def run(**values: Any) -> None:
        flags = {name: values.pop(name) for name in JOB_FLAGS if name not in without}
        command(**values, given=_given(flags))

    ends = 2 if "verbose" in own else 1
    parameters = [*mine[:-ends], *shared, *mine[-ends:]]  # --verbose and --json come last
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The job as given: the file first, flags over it."""
    given = _job_file(flags.pop("job"))
    return given | {JOB_FLAGS[name].field or name: value for name, value in flags.items() if value is not None}


def _job_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: broken JSON ({error})") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: expected a JSON object of job settings")
    return given


def batch_of(micro_batch: int | None, accumulation: int | None) -> dict[str, int]:
    """What was given of the batch, as fields of the job."""
    batch = {"micro_batch_size": micro_batch, "gradient_accumulation_steps": accumulation}
    return {name: size for name, size in batch.items() if size is not None}


def sure(confidence: float | None) -> dict[str, Any]:
    """The confidence, where one was given."""
    return {} if confidence is None else {"confidence": confidence}


def between_commas(given: str) -> list[str]:
    """The words of a list."""
    return [one.strip() for one in given.split(",") if one.strip()]


def check_file(flag: str, path: Path | None, kinds: tuple[str, ...]) -> None:
    """Refuse a file that could not be written before anything is worked out.

    Raises:
        ConfigError: naming the flag and the file.
    """
    if path is None:
        return
    if path.suffix.lower() not in kinds:
        raise ConfigError(f"{flag} {path}: the name must end in {', '.join(kinds)}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag} {path}: cannot be written there")


@contextmanager
def progress() -> Iterator[Callable[[str, float], None]]:
    """Told what goes on, shows it on a terminal, in a log as a line now and then; what takes no time loads nothing."""
    bar: Any = None
    last = time.monotonic()

    def tell(what: str, share: float) -> None:
        nonlocal bar, last
        if bar is None and sys.stderr.isatty():
            from vramplan.render.progress_bar import Bar

            bar = Bar()
        if bar is not None:
            bar.tell(what, share)
        elif time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{share:4.0%}  {what}", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()
