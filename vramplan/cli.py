"""The command line: flags in, an answer or one line of error out.

Exit codes: 0 fits, 1 does not fit, 2 bad input.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from vramplan.errors import ConfigError, UnsupportedError, VramplanError

app = typer.Typer(
    name="vramplan",
    help="What a training run needs of a GPU, before it runs.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A shipped name, a Hub id, a folder, a config.json or package.module:function."
    ),
]
Gpu = Annotated[str, typer.Option(help="Card by name, or auto for the one in this box.", show_default=False)]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Let a trace run code that comes with the model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Flag(NamedTuple):
    """A flag that says something of the job; `field` is what :class:`vramplan.Job` calls it."""

    type: Any
    help: str
    field: str = ""


JOB_FLAGS = {
    "num_gpus": Flag(int, "Data-parallel cards that each hold the whole model (1)."),
    "method": Flag(str, "full or lora (lora); dora with --by trace; qlora is refused so far."),
    "lora_rank": Flag(int, "Rank of the adapters (8)."),
    "lora_targets": Flag(str, "all-linear, or names of layers: q_proj,v_proj (all-linear)."),
    "lora_dropout": Flag(float, "Dropout before each adapter (0)."),
    "lora_dtype": Flag(str, "Stored dtype of adapters: fp32, bf16, fp16 (fp32, as PEFT)."),
    "dtype": Flag(str, "Stored dtype of the weights: bf16, fp16, fp32 (bf16)."),
    "autocast": Flag(str, "torch.autocast: none, bf16, fp16 (as the weights)."),
    "quantize": Flag(str, "nf4 or int8: refused so far."),
    "optimizer": Flag(str, "transformers' optim name (adamw_torch_fused)."),
    "seq_len": Flag(int, "Tokens in each sample (2048).", "sequence_length"),
    "batches": Flag(str, "unpadded, padded or packed samples (unpadded)."),
    "checkpointing": Flag(str, "Activation checkpointing: full or none (full)."),
    "attention": Flag(str, "sdpa, flash or eager (sdpa)."),
    "loss": Flag(str, "standard, sliced (transformers before 4.49), liger or chunked (standard)."),
    "loop": Flag(str, "trainer (transformers' Trainer) or plain (trainer)."),
    "strategy": Flag(str, "ddp; zero1, zero2, zero3 and fsdp are refused so far (ddp)."),
    "offload": Flag(str, "none; anything else is refused so far (none)."),
    "job": Flag(Path, "A JSON file with more settings of the job."),
}
"""The flags that `suggest` and `estimate` share; :func:`vramplan.defaults.complete_job` fills in what is not given."""


def with_job_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the job's flags added; it gets them as one dictionary, `given`."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[flag.type | None, typer.Option(help=flag.help, show_default=False)],
        )
        for name, flag in JOB_FLAGS.items()
    ]
    mine = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "given"]

    def run(**values: Any) -> None:
        flags = {name: values.pop(name) for name in JOB_FLAGS}
        command(**values, given=_given(flags))

    parameters = [*mine[:-1], *shared, mine[-1]]  # --json comes last
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The job as given: the file first, flags over it."""
    for name in ("quantize", "offload"):
        if flags.pop(name) not in (None, "none"):
            raise UnsupportedError(f"--{name} is not modelled yet")
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


@app.command()
@with_job_flags
def suggest(
    model: Model,
    gpu: Gpu,
    global_batch: Annotated[int, typer.Option(help="Samples behind one optimizer step.", show_default=False)],
    samples: Annotated[int | None, typer.Option(help="Samples in the data set: adds the steps of the run.")] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the data set.")] = 1.0,
    base_lr: Annotated[float | None, typer.Option(help="A learning rate you know to work, to carry over.")] = None,
    base_batch: Annotated[int | None, typer.Option(help="The global batch that rate was tuned for.")] = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> None:
    """Find batch x accumulation for a global batch."""
    from vramplan import api, plan

    with _progress() as progress:
        found = api.suggest(
            model,
            gpu,
            global_batch,
            samples=samples,
            epochs=epochs,
            base_lr=base_lr,
            base_batch=base_batch,
            progress=progress,
            trust_remote_code=trust_remote_code,
            **given,
        )
    if as_json:
        from vramplan.render import json as as_text

        print(as_text.dumps(as_text.search(found, plan.Run(samples, epochs))))
    else:
        from vramplan.render import text

        text.print_all(text.search(found, plan.Run(samples, epochs), text.width()))
    raise typer.Exit(0 if found.recommended else 1)


@app.command()
@with_job_flags
def estimate(
    model: Model,
    gpu: Gpu,
    micro_batch: Annotated[int | None, typer.Option(help="Samples one card takes in one forward (1).")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Micro-batches behind one optimizer step (1).")] = None,
    by: Annotated[
        str | None, typer.Option(help="analytic, or trace (the real model; analytic where a block describes it).")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="List every tensor at the peak.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw memory over the step: FILE.svg, .png or .html.")] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Write FILE.pickle for PyTorch's memory viewer.")] = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> None:
    """Say what one job needs, byte by byte."""
    from vramplan import api

    batch = {"micro_batch_size": micro_batch, "gradient_accumulation_steps": accumulation}
    card = api.load_card(gpu)
    given |= {name: size for name, size in batch.items() if size is not None}
    with _progress() as progress:
        found = api.estimate(model, card, by=by, progress=progress, trust_remote_code=trust_remote_code, **given)
    if plot is not None:
        import vramplan.render.plot as as_picture

        as_picture.write(found, plot)
    if snapshot is not None:
        import vramplan.render.snapshot as as_snapshot

        as_snapshot.write(found, snapshot)
    if as_json:
        from vramplan.render import json as as_text

        print(as_text.dumps(as_text.estimate(found)))
    else:
        from vramplan.render import text

        text.print_all(text.estimate(found, card, found.job.num_gpus, explain))
    raise typer.Exit(0 if found.fits else 1)


@app.command()
def models(
    search: Annotated[str, typer.Argument(help="Only those whose name contains this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the shipped models."""
    from vramplan.catalog import load_spec, model_names

    wanted = search.lower()
    specs = [load_spec(name) for name in model_names()]
    found = [one for one in specs if any(wanted in name.lower() for name in (one.name, *one.aliases))]
    _listed(found, "model", search, as_json, "models", "model")


@app.command()
def gpus(
    search: Annotated[str, typer.Argument(help="Only those whose name contains this.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the known cards."""
    from vramplan.catalog import all_cards

    wanted = search.lower()
    found = [one for one in all_cards() if any(wanted in n.lower() for n in (one.name, one.title, *one.aliases))]
    _listed(found, "card", search, as_json, "cards", "card")


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """Told what goes on, shows it on a terminal; what takes no time loads nothing."""
    bar: Any = None

    def tell(what: str, share: float) -> None:
        nonlocal bar
        if bar is None and sys.stderr.isatty():
            from vramplan.render.progress import Bar

            bar = Bar()
        if bar is not None:
            bar.tell(what, share)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()


def _listed(found: list[Any], kind: str, search: str, as_json: bool, table: str, row: str) -> None:
    if not found:
        raise ConfigError(f"no {kind} has {search!r} in its name")
    if as_json:
        from vramplan.render import json as as_text

        to_row: Callable[[Any], dict[str, Any]] = getattr(as_text, row)
        print(as_text.dumps([to_row(one) for one in found]))
    else:
        from vramplan.render import text

        text.print_all(getattr(text, table)(found))


def _version(wanted: bool) -> None:
    if wanted:
        from vramplan import __version__

        print(f"vramplan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters still gets the figures
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except VramplanError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader went away: nothing is left to say, not even at exit
        _close_output()
        sys.exit(0)
    except OSError as error:  # a full disk behind the redirection
        _close_output()
        _fail(f"the output cannot be written ({error.strerror})")
    except (KeyboardInterrupt, typer.Abort):
        print("vramplan: interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit:  # typer's own way out when the reader of a pipe goes away; 1 would say "does not fit"
        sys.exit(0)
    except Exception as error:
        message = getattr(error, "format_message", None)  # typer's own usage errors
        if message is None:
            raise
        command = (
            sys.argv[1]
            if sys.argv[1] in {one.callback.__name__ for one in app.registered_commands if one.callback}
            else ""
        )
        _fail(f"{message().rstrip('.')}; see `{' '.join(filter(None, ('vramplan', command)))} --help`")
    sys.exit(code if isinstance(code, int) else 0)


def _close_output() -> None:
    """What is still buffered goes nowhere: the interpreter would try to write it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str) -> None:
    print("vramplan: " + " ".join(line.split()), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
