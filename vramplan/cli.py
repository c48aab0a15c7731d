"""The command line: flags in, an answer or one line of error out.

Exit codes: 0 fits, 1 does not fit, 2 bad input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.errors import ConfigError, VramplanError

app = typer.Typer(
    name="vramplan",
    help="What a training run needs of a GPU, before it runs.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Argument(help="A shipped name, a Hub id, a folder or a config.json.", show_default=False)]
Gpu = Annotated[str, typer.Option(help="Card by name, or auto for the one in this box.", show_default=False)]
NumGpus = Annotated[int, typer.Option(help="Data-parallel cards that each hold the whole model.")]
Method = Annotated[str, typer.Option(help="full, lora (qlora and dora are refused for now).")]
LoraRank = Annotated[int | None, typer.Option(help="Rank of the adapters (8).")]
LoraTargets = Annotated[str | None, typer.Option(help="all-linear, or names of layers: q_proj,v_proj.")]
LoraDropout = Annotated[float | None, typer.Option(help="Dropout before each adapter (0).")]
LoraDtype = Annotated[str | None, typer.Option(help="Stored dtype of adapters: fp32 (PEFT's default), bf16, fp16.")]
Dtype = Annotated[str | None, typer.Option(help="Stored dtype of the weights: bf16 (default), fp16, fp32.")]
Autocast = Annotated[
    str | None, typer.Option(help="torch.autocast: none, bf16, fp16 (default: a half dtype of weights).")
]
Quantize = Annotated[str | None, typer.Option(help="nf4 or int8 (refused for now).")]
Optimizer = Annotated[str | None, typer.Option(help="transformers' optim name (adamw_torch_fused).")]
SeqLen = Annotated[int | None, typer.Option(help="Tokens in each sample (2048).")]
Batches = Annotated[str | None, typer.Option(help="unpadded (default), padded or packed samples.")]
Checkpointing = Annotated[str | None, typer.Option(help="Activation checkpointing: full (default) or none.")]
Attention = Annotated[str | None, typer.Option(help="sdpa (default), flash or eager.")]
Loss = Annotated[str | None, typer.Option(help="standard (default), liger or chunked.")]
Loop = Annotated[str | None, typer.Option(help="trainer (transformers' Trainer, default) or plain.")]
Strategy = Annotated[str | None, typer.Option(help="ddp (default); zero1-3 and fsdp are refused for now.")]
Offload = Annotated[str | None, typer.Option(help="none; anything else is refused for now.")]
JobFile = Annotated[Path | None, typer.Option("--job", help="A JSON file with more settings of the job.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _job(job: Path | None, quantize: str | None, offload: str | None, **flags: Any) -> dict[str, Any]:
    """The job as given: the file first, flags over it."""
    from vramplan.errors import UnsupportedError

    for flag, value in (("--quantize", quantize), ("--offload", offload)):
        if value not in (None, "none"):
            raise UnsupportedError(f"{flag} {value} is not modelled yet")
    given: dict[str, Any] = {}
    if job is not None:
        try:
            given = json.loads(job.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{job}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise ConfigError(f"{job}: broken JSON ({error})") from error
        if not isinstance(given, dict):
            raise ConfigError(f"{job}: expected a JSON object of job settings")
        if isinstance(given.get("lora_targets"), list):
            given["lora_targets"] = tuple(given["lora_targets"])
    targets = flags.pop("lora_targets")
    if targets is not None:
        given["lora_targets"] = None if targets == "all-linear" else tuple(filter(None, targets.split(",")))
    return given | {name: value for name, value in flags.items() if value is not None}


@app.command()
def suggest(
    model: Model,
    gpu: Gpu,
    global_batch: Annotated[int, typer.Option(help="Samples behind one optimizer step.", show_default=False)],
    num_gpus: NumGpus = 1,
    method: Method = "lora",
    lora_rank: LoraRank = None,
    lora_targets: LoraTargets = None,
    lora_dropout: LoraDropout = None,
    lora_dtype: LoraDtype = None,
    dtype: Dtype = None,
    autocast: Autocast = None,
    quantize: Quantize = None,
    optimizer: Optimizer = None,
    seq_len: SeqLen = None,
    batches: Batches = None,
    checkpointing: Checkpointing = None,
    attention: Attention = None,
    loss: Loss = None,
    loop: Loop = None,
    strategy: Strategy = None,
    offload: Offload = None,
    job: JobFile = None,
    samples: Annotated[int | None, typer.Option(help="Samples in the data set: adds the steps of the run.")] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the data set.")] = 1.0,
    base_lr: Annotated[float | None, typer.Option(help="A learning rate you know to work, to carry over.")] = None,
    base_batch: Annotated[int | None, typer.Option(help="The global batch that rate was tuned for.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the per-device batch and accumulation that reach a global batch."""
    from vramplan import api, plan

    given = _job(
        job,
        quantize,
        offload,
        method=method,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        lora_dropout=lora_dropout,
        lora_dtype=lora_dtype,
        dtype=dtype,
        autocast=autocast,
        optimizer=optimizer,
        sequence_length=seq_len,
        batches=batches,
        checkpointing=checkpointing,
        attention=attention,
        loss=loss,
        loop=loop,
        strategy=strategy,
        num_gpus=num_gpus,
    )
    found = api.suggest(
        model, gpu, global_batch, samples=samples, epochs=epochs, base_lr=base_lr, base_batch=base_batch, **given
    )
    run = plan.Run(samples, epochs)
    if as_json:
        from vramplan.render import json as as_text

        print(as_text.dumps(as_text.search(found, run)))
    else:
        from vramplan.render import text

        text.print_all(text.search(found, run))
    raise typer.Exit(0 if found.recommended else 1)


@app.command()
def estimate(
    model: Model,
    gpu: Gpu,
    micro_batch: Annotated[int | None, typer.Option(help="Samples one card takes in one forward (1).")] = None,
    accumulation: Annotated[int | None, typer.Option(help="Micro-batches behind one optimizer step (1).")] = None,
    by: Annotated[str, typer.Option(help="analytic (trace is refused for now).")] = "analytic",
    explain: Annotated[bool, typer.Option("--explain", help="List every tensor at the peak.")] = False,
    num_gpus: NumGpus = 1,
    method: Method = "lora",
    lora_rank: LoraRank = None,
    lora_targets: LoraTargets = None,
    lora_dropout: LoraDropout = None,
    lora_dtype: LoraDtype = None,
    dtype: Dtype = None,
    autocast: Autocast = None,
    quantize: Quantize = None,
    optimizer: Optimizer = None,
    seq_len: SeqLen = None,
    batches: Batches = None,
    checkpointing: Checkpointing = None,
    attention: Attention = None,
    loss: Loss = None,
    loop: Loop = None,
    strategy: Strategy = None,
    offload: Offload = None,
    job: JobFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what one job needs, byte by byte."""
    from vramplan import api
    from vramplan.errors import UnsupportedError

    if by != "analytic":
        raise UnsupportedError(f"--by {by} is not there yet; use --by analytic")
    given = _job(
        job,
        quantize,
        offload,
        method=method,
        lora_rank=lora_rank,
        lora_targets=lora_targets,
        lora_dropout=lora_dropout,
        lora_dtype=lora_dtype,
        dtype=dtype,
        autocast=autocast,
        optimizer=optimizer,
        sequence_length=seq_len,
        batches=batches,
        checkpointing=checkpointing,
        attention=attention,
        loss=loss,
        loop=loop,
        strategy=strategy,
        num_gpus=num_gpus,
        micro_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
    )
    card = api.load_card(gpu)
    found = api.estimate(model, card, **given)
    if as_json:
        from vramplan.render import json as as_text

        print(as_text.dumps(as_text.estimate(found)))
    else:
        from vramplan.render import text

        text.print_all(text.estimate(found, card, num_gpus, explain))
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
    try:
        code = app(standalone_mode=False)
    except VramplanError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader went away: nothing is left to say, not even at exit
        sys.stdout = None
        sys.exit(0)
    except Exception as error:
        message = getattr(error, "format_message", None)  # typer's own usage errors
        if message is None:
            raise
        _fail(f"{message().rstrip('.')}; see `vramplan {' '.join(sys.argv[1:2])} --help`".replace("\n", " "))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(line: str) -> None:
    print(f"vramplan: {line}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
