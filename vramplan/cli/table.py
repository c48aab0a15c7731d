"""`vramplan table`."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vramplan.cli import completion
from vramplan.cli.help import DATA, METHOD, MODEL, OUTPUT
from vramplan.cli.options import AsJson, Confidence, MicroBatch, between_commas, progress, sure, with_job_flags
from vramplan.errors import ConfigError

if TYPE_CHECKING:
    from vramplan.planner.table.config import Wanted

ALONE = "table"
"""What a table made of flags is called between markers."""


@partial(with_job_flags, without=("method", "seq_len", "lengths"))
def table(
    models: Annotated[
        str | None,
        typer.Option(
            help="Names, or patterns over shipped ones: qwen2.5-*,phi-4.",
            rich_help_panel=MODEL,
            autocompletion=completion.model_names,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            help="GPUs by name or pattern: rtx4090,h100*.",
            rich_help_panel=MODEL,
            autocompletion=completion.gpu_names,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="full, lora, qlora, dora (lora).",
            rich_help_panel=METHOD,
            autocompletion=completion.job_values("method", "qlora"),
        ),
    ] = None,
    seq_lens: Annotated[
        str | None, typer.Option(help="Tokens in each sample: 2048,8192 (2048).", rich_help_panel=DATA)
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            help="max-batch; speed: tokens/s at that; memory: GiB at one micro-batch; card: the smallest GPU that fits"
            " (max-batch).",
            rich_help_panel=OUTPUT,
            autocompletion=completion.one_of("max-batch", "speed", "memory", "card"),
        ),
    ] = None,
    micro_batch: MicroBatch = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="markdown, csv, json, html, latex (markdown).",
            rich_help_panel=OUTPUT,
            autocompletion=completion.one_of("markdown", "csv", "json", "html", "latex"),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Tables by name, as TOML (vramplan-table.toml, if it is here).", rich_help_panel=MODEL),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Which of its tables to make: A,B (all).", rich_help_panel=MODEL)
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Compare with FILE, between its markers; a diff and exit code 1 if it is out of date.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Update FILE between its markers.", rich_help_panel=OUTPUT)] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes (one for each core).", rich_help_panel=OUTPUT)] = None,
    confidence: Confidence = None,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> None:
    """Make a table of many models on many GPUs, or keep one in a file up to date."""
    from vramplan.planner.table import embedded
    from vramplan.planner.table.config import FORMATS, NAME, Wanted, read
    from vramplan.planner.table.request import one_of

    if as_json and format not in (None, "json"):
        raise ConfigError(f"--json with --format {format}: give one")
    if format is not None:
        one_of("--format", format, FORMATS)
    if check is not None and write is not None:
        raise ConfigError("--check and --write: give one")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: expected a whole number from 1")
    chosen = None if name is None else _listed("--name", name)
    path = check or write
    lines = embedded.read(path) if path is not None else []
    found = embedded.regions(path, lines) if path is not None else []
    flags = {"models": models, "gpus": gpus, "methods": methods, "seq_lens": seq_lens}
    asked = {"show": show, "micro_batch": micro_batch, **sure(confidence), **given}
    asked = {key: value for key, value in asked.items() if value is not None}
    if models is None and gpus is None:
        config = config or Path(NAME)
        if not config.exists():
            raise ConfigError(f"give --models and --gpus, or --config FILE ({config} is not there)")
        only = next((f"--{key.replace('_', '-')}" for key in {**flags, **asked} if {**flags, **asked}[key]), None)
        if only is not None:
            raise ConfigError(f"{only} beside {config}: say it there")
        wanted = read(config, chosen)
    else:
        if config is not None:
            raise ConfigError("--config with --models or --gpus: give one")
        if models is None or gpus is None:
            raise ConfigError("--models and --gpus go together")
        lists: dict[str, Any] = {key: _listed(f"--{key}", value) for key, value in flags.items() if value is not None}
        if seq_lens is not None:
            lists["seq_lens"] = [_number("--seq-lens", one) for one in lists["seq_lens"]]
        wanted = {(chosen or [ALONE])[0]: Wanted(format or "markdown", {**lists, **asked})}
        chosen = list(wanted)
    regions = embedded.wanted(path, found, wanted, chosen) if path is not None else []
    known = list(wanted)
    if path is not None:
        wanted = {one.name: wanted[one.name] for one in regions}
    kind = "json" if as_json else format
    formats = {kind or one.format for one in wanted.values()}
    if path is None and len(wanted) > 1 and "csv" in formats:
        raise ConfigError(f"--format csv holds one table: give --name, one of {', '.join(wanted)}")
    texts = _made(wanted, kind, jobs, config)
    if path is None:
        print(_together(texts) if formats == {"json"} else "\n".join(texts.values()), end="")
        raise typer.Exit(0)
    new, stale = embedded.renewed(lines, texts, regions), embedded.stale(lines, texts, regions)
    if stale and write is not None:
        fresh = embedded.read(path)  # it may have been edited meanwhile
        embedded.put(path, embedded.renewed(fresh, texts, embedded.regions(path, fresh)))
    outcomes = {
        "renewed" if write is not None else "stale": stale,
        "as it should be": [one for one in texts if one not in stale],
        "without markers there": [one for one in known if one not in texts],
    }
    told = [f"{', '.join(names)} {outcome}" for outcome, names in outcomes.items() if names]
    print(f"{path}: {'; '.join(told)}", file=sys.stderr)
    if stale and check is not None:
        print(embedded.difference(path, lines, new), end="")
        raise typer.Exit(1)
    raise typer.Exit(0)


def _together(texts: dict[str, str]) -> str:
    """JSON of tables as one object, by name; one alone as it is."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    found = {name: json.loads(text) for name, text in texts.items()}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _made(wanted: dict[str, Wanted], format: str | None, jobs: int | None, config: Path | None) -> dict[str, str]:
    """Each table as text, a share of the progress for each; `config` is the file that asks for them."""
    from vramplan.planner.table import fill, table_request
    from vramplan.render.table import FORMATS

    texts, sheets = {}, {}
    for name, asked in wanted.items():
        try:
            sheets[name] = table_request(**asked.sheet)
        except ConfigError as error:
            raise ConfigError(f"{config}: {name}: {error.text}" if config else error.text) from error
    with progress() as tell:
        for number, (name, one) in enumerate(sheets.items()):

            def told(what: str, share: float, number: int = number) -> None:
                tell(what, (number + share) / len(sheets))

            try:
                filled = fill(one, jobs=jobs or os.cpu_count() or 1, progress=told)
            except ConfigError as error:
                raise ConfigError(f"{config}: {name}: {error.text}" if config else error.text) from error
            texts[name] = FORMATS[format or wanted[name].format](filled)
    return texts


def _listed(flag: str, given: str) -> list[str]:
    """Words between commas.

    Raises:
        ConfigError: where there are none.
    """
    found = between_commas(given)
    if not found:
        raise ConfigError(f"{flag}: nothing given")
    return found


def _number(flag: str, given: str) -> int:
    try:
        return int(given)
    except ValueError:
        raise ConfigError(f"{flag} {given}: expected whole numbers, such as 2048,8192") from None
