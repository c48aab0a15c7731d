"""`vramplan table`."""

from __future__ import annotations

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
    between_commas,
    keep_results,
    progress,
    say,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import DATA, METHOD, MODEL, OUTPUT
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError

if TYPE_CHECKING:
    pass

TABLE_OF_FLAGS = "table"
"""The name between markers of a table that is made of flags."""


@partial(with_job_flags, without=("method", "seq_len", "lengths"))
def table(
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
    jobs: Annotated[int | None, Option(help="Processes (one for each core).", panel=OUTPUT)] = None,
    confidence: Confidence = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Make a table of many models on many GPUs, or keep one in a file up to date."""
    from vramplan.planner.table.config import FORMATS, NAME, TableConfig, read
    from vramplan.planner.table.request import one_of
    from vramplan.render.table_file import as_one_json, table_texts, update_file

    keep_results(not no_cache)
    if as_json and format not in (None, "json"):
        raise ConfigError(f"--json with --format {format}: give one")
    if format is not None:
        one_of("--format", format, FORMATS)
    if check is not None and write is not None:
        raise ConfigError("--check and --write: give one")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs {jobs}: expected a whole number from 1")
    names = None if name is None else _listed("--name", name)
    lists = {"models": models, "gpus": gpus, "methods": methods, "seq_lens": seq_lens}
    options = {"show": show, "micro_batch": micro_batch, **sure(confidence), **given}
    options = {key: value for key, value in options.items() if value is not None}
    if models is None and gpus is None:
        config = config or Path(NAME)
        if not is_file(config):
            raise ConfigError(f"give --models and --gpus, or --config FILE ({config} is not there)")
        every = {**lists, **options}
        option = next((f"--{key.replace('_', '-')}" for key, value in every.items() if value), None)
        if option is not None:
            raise ConfigError(f"{option} beside {config}: say it there")
        tables = read(config, names)
    else:
        if config is not None:
            raise ConfigError("--config with --models or --gpus: give one")
        if models is None or gpus is None:
            raise ConfigError("--models and --gpus go together")
        listed: dict[str, Any] = {key: _listed(f"--{key}", text) for key, text in lists.items() if text is not None}
        if seq_lens is not None:
            listed["seq_lens"] = [_number("--seq-lens", text) for text in listed["seq_lens"]]
        names = [(names or [TABLE_OF_FLAGS])[0]]
        tables = {names[0]: TableConfig(format or "markdown", {**listed, **options})}
    one_format = "json" if as_json else format
    path = check or write
    with progress() as tell:
        if path is None:
            formats = {one_format or table.format for table in tables.values()}
            if len(tables) > 1 and "csv" in formats:
                raise ConfigError(f"--format csv holds one table: give --name, one of {', '.join(tables)}")
            texts = table_texts(tables, one_format, jobs=jobs, source=config, progress=tell)
        else:
            update = update_file(
                path, tables, names, one_format, write=write is not None, jobs=jobs, source=config, progress=tell
            )
    if path is None:
        say(as_one_json(texts) if formats == {"json"} else "\n".join(texts.values()), end="")
        return 0
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
        return int(text)
    except ValueError:
        raise ConfigError(f"{flag} {text}: expected whole numbers, such as 2048,8192") from None
