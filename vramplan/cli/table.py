"""`vramplan table`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vramplan.bounded_read import is_file
from vramplan.cli import completion
from vramplan.cli.options import (
    AsJson,
    Confidence,
    MicroBatch,
    NoCache,
    Verbose,
    between_commas,
    check_file,
    keep_results,
    progress,
    say,
    share_of,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import DATA, METHOD, MODEL, OUTPUT
from vramplan.cli.parameters import Argument, Option
from vramplan.errors import ConfigError
from vramplan.units import in_digits

if TYPE_CHECKING:
    from vramplan.planner.table.config import TableConfig

TABLE_OF_FLAGS = "table"
"""The name between markers of a table that is made of flags."""


@partial(with_job_flags, without=("method", "seq_len", "lengths"))
def table(
    parts: Annotated[list[Path] | None, Argument(metavar="PART", help="The files that --merge takes.")] = None,
    models: Annotated[
        str | None,
        Option(
            help="Names, or patterns over shipped ones: qwen2.5-*,phi-4.",
            panel=MODEL,
            complete=completion.model_names,
        ),
    ] = None,
    gpus: Annotated[
        str | None,
        Option(
            help="GPUs by name or pattern: rtx4090,h100*.",
            panel=MODEL,
            complete=completion.gpu_names,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        Option(
            help="full, lora, qlora, dora (lora).",
            panel=METHOD,
            complete=completion.job_values("method", "qlora"),
        ),
    ] = None,
    seq_lens: Annotated[str | None, Option(help="Tokens in each sample: 2048,8192 (2048).", panel=DATA)] = None,
    show: Annotated[
        str | None,
        Option(
            help="max-batch; speed: tokens/s at that; memory: GiB at one micro-batch; card: the smallest GPU that fits"
            " (max-batch).",
            panel=OUTPUT,
            complete=completion.one_of("max-batch", "speed", "memory", "card"),
        ),
    ] = None,
    micro_batch: MicroBatch = None,
    format: Annotated[
        str | None,
        Option(
            help="markdown, csv, json, html, latex (markdown).",
            panel=OUTPUT,
            complete=completion.one_of("markdown", "csv", "json", "html", "latex"),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        Option(help="Tables by name, as TOML (vramplan-table.toml, if it is here).", panel=MODEL),
    ] = None,
    name: Annotated[str | None, Option(help="Which of its tables to make: A,B (all).", panel=MODEL)] = None,
    check: Annotated[
        Path | None,
        Option(
            help="Compare with FILE, between its markers; a diff and exit code 1 if it is out of date.",
            panel=OUTPUT,
        ),
    ] = None,
    write: Annotated[Path | None, Option(help="Update FILE between its markers.", panel=OUTPUT)] = None,
    shard: Annotated[
        str | None, Option(help="Compute one share of the rows, 3/16, into a file for --merge.", panel=OUTPUT)
    ] = None,
    out: Annotated[Path | None, Option(help="That file (vramplan-table-3-of-16.json).", panel=OUTPUT)] = None,
    merge: Annotated[
        bool, Option("--merge", help="Make the tables of the files of all shares; with the same options.", panel=OUTPUT)
    ] = False,
    jobs: Annotated[int | None, Option(help="Processes (one for each core).", panel=OUTPUT)] = None,
    confidence: Confidence = None,
    no_cache: NoCache = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Make a table of many models on many GPUs, or keep one in a file up to date."""
    from vramplan.planner.table.config import FORMATS, NAME
    from vramplan.planner.table.request import one_of

    keep_results(not no_cache)
    _check_pairs(
        {"--check": check, "--write": write, "--shard": shard},
        {"--shard": shard, "--merge": merge},
        {"--shard": shard, "--format": format},
        {"--shard": shard, "--json": as_json},
    )
    if as_json and format not in (None, "json"):
        raise ConfigError(f"--json with --format {format}: give one")
    if format is not None:
        one_of("--format", format, FORMATS)
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: expected a whole number from 1")
    if out is not None and shard is None:
        raise ConfigError(f"--out {out}: give it with --shard")
    if bool(parts) != merge:
        raise ConfigError(f"{parts[0]}: give it with --merge" if parts else "--merge: give the files of all shares")
    names = None if name is None else _listed("--name", name)
    lists = {"models": models, "gpus": gpus, "methods": methods, "seq_lens": seq_lens}
    options = {"show": show, "micro_batch": micro_batch, **sure(confidence), **given}
    options = {key: value for key, value in options.items() if value is not None}
    if models is None and gpus is None:
        config = config or Path(NAME)
        tables = _in_file(config, names, {**lists, **options})
    else:
        if config is not None:
            raise ConfigError("--config with --models or --gpus: give one")
        names = [(names or [TABLE_OF_FLAGS])[0]]
        tables = {names[0]: _of_flags(lists, options, format)}
    format = "json" if as_json else format
    work: dict[str, Any] = {"jobs": jobs, "source": config, "parts": parts or ()}
    code = 0
    if shard is not None:
        _write_part(tables, shard, out, jobs, config)
    elif check is not None or write is not None:
        code = _update(tables, names, format, check, write, **work)
    else:
        _print(tables, format, **work)
    return code


def _check_pairs(*groups: dict[str, Any]) -> None:
    """Of each group at most one may be given.

    Raises:
        ConfigError: if there are more.
    """
    for group in groups:
        flags = [flag for flag, value in group.items() if value]
        if len(flags) > 1:
            raise ConfigError(f"{' and '.join(flags)}: give one")


def _in_file(config: Path, names: list[str] | None, beside: dict[str, Any]) -> dict[str, TableConfig]:
    """The tables of a configuration, beside which no other options are given.

    Raises:
        ConfigError: if there is no such file, or there are others.
    """
    from vramplan.planner.table.config import read

    if not is_file(config):
        raise ConfigError(f"give --models and --gpus, or --config FILE ({config} is not there)")
    option = next((f"--{key.replace('_', '-')}" for key, value in beside.items() if value), None)
    if option is not None:
        raise ConfigError(f"{option} beside {config}: say it there")
    return read(config, names)


def _of_flags(lists: dict[str, str | None], options: dict[str, Any], format: str | None) -> TableConfig:
    """The table that the options describe.

    Raises:
        ConfigError: if models or GPUs are missing, or a list is none.
    """
    from vramplan.planner.table.config import TableConfig

    if lists["models"] is None or lists["gpus"] is None:
        raise ConfigError("--models and --gpus go together")
    listed: dict[str, Any] = {key: _listed(f"--{key}", text) for key, text in lists.items() if text is not None}
    if "seq_lens" in listed:
        listed["seq_lens"] = [_number("--seq-lens", text) for text in listed["seq_lens"]]
    return TableConfig(format or "markdown", {**listed, **options})


def _write_part(
    tables: dict[str, TableConfig], shard: str, out: Path | None, jobs: int | None, source: Path | None
) -> None:
    from vramplan.planner.table.parts import MAX_SHARES, Share, write_part
    from vramplan.render.table_file import requests_of

    share = Share(*share_of(shard, MAX_SHARES))
    out = out or Path(f"vramplan-table-{share.number}-of-{share.of}.json")
    check_file("--out", out, (".json",))
    requests = requests_of(tables, source)
    with progress() as tell:
        num_rows = write_part(out, requests, share, jobs=jobs or os.cpu_count() or 1, progress=tell)
    say(f"{out}: {num_rows:,} row{'s' * (num_rows != 1)} of {', '.join(tables)}, share {share}", file=sys.stderr)


def _print(tables: dict[str, TableConfig], format: str | None, **options: Any) -> None:
    from vramplan.render.table_file import as_one_json, table_texts

    formats = {format or table.format for table in tables.values()}
    if len(tables) > 1 and "csv" in formats:
        raise ConfigError(f"--format csv holds one table: give --name, one of {', '.join(tables)}")
    with progress() as tell:
        texts = table_texts(tables, format, progress=tell, **options)
    say(as_one_json(texts) if formats == {"json"} else "\n".join(texts.values()), end="")


def _update(
    tables: dict[str, TableConfig],
    names: list[str] | None,
    format: str | None,
    check: Path | None,
    write: Path | None,
    **options: Any,
) -> int:
    """Compare the tables in a file or write them; the exit code."""
    from vramplan.render.table_file import update_file

    path = check or write
    assert path is not None
    with progress() as tell:
        update = update_file(path, tables, names, format, write=write is not None, progress=tell, **options)
    outcomes = {
        "renewed" if write is not None else "stale": update.stale,
        "as it should be": update.current,
        "without markers there": update.missing,
    }
    lines = [f"{', '.join(names)} {outcome}" for outcome, names in outcomes.items() if names]
    say(f"{path}: {'; '.join(lines)}", file=sys.stderr)
    if update.stale and check is not None:
        say(update.difference, end="")
        return 1
    return 0


def _listed(flag: str, text: str) -> list[str]:
    """Words between commas.

    Raises:
        ConfigError: where there are none.
    """
    names = between_commas(text)
    if not names:
        raise ConfigError(f"{flag}: nothing given")
    return names


def _number(flag: str, text: str) -> int:
    try:
        return int(in_digits(text, 1024))
    except ValueError:
        raise ConfigError(f"{flag} {text}: expected whole numbers, such as 2048,8192") from None
