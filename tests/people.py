"""How the configurations that people write are read: the files of tests/configs/people against their truth.

    python -m tests.people                  a table of counts by folder, and what is not right
    python -m tests.people --list           every file
    python -m tests.people trl shell/loop   files whose path begins so
    python -m tests.people --json           the outcomes as JSON lines

Each ``truth*.jsonl`` there has one object a line: `file`; `kind`, which is "answer", "refuse" or "ask"; `framework` and
`model`; `job`, the fields of vramplan.Job that the file decides (null: the file does not say; "fsdp.version": a nested
field); `version`, the framework's version or its beginning, if the file tells; `mentions`, what an error has to name,
or for an answer its notes; `refusable`, if a refusal that names `mentions`, or these words, is as right as the answer;
`why`, the source.
"a|b" is either. The machine has one GPU unless the file says otherwise, and nothing is looked up over the network.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vramplan.errors import VramplanError
from vramplan.frameworks import parsed_config
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner import read_config

FOLDER = Path(__file__).parent / "configs" / "people"
CLASSES = ("right", "misread", "rightly refused", "refused", "failed")
"""answered right; answered, but misread; rightly refused or asked; refused where an answer is expected; failed: a
traceback, a valid file called broken, or a refusal that does not name the reason."""
BROKEN = re.compile(
    r"cannot be (read|parsed)|cannot parse|is not valid|invalid (yaml|json|toml)|no training command|unclosed"
    r"|unterminated|not a (mapping|configuration)|no framework|which framework|not recogni[sz]ed|does not look like"
    r"|names no model|stands twice",
    re.IGNORECASE,
)
"""Words of an error that calls the file itself broken, or says that there is nothing to read."""
AS_WRITTEN = ("sequence_length", "max_pixels", "min_pixels")
"""Fields that the model's defaults fill in: what the reading itself says is compared."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    file: str
    result: str
    """One of `CLASSES`."""
    detail: str = ""


def truths(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All truths, in the order of their files."""
    lines = (line for path in sorted(folder.rglob("truth*.jsonl")) for line in path.read_text("utf-8").splitlines())
    return sorted((json.loads(line) for line in lines if line.strip()), key=lambda truth: truth["file"])


def outcome(truth: dict[str, Any], folder: Path = FOLDER) -> Outcome:
    """What became of the file of a truth."""
    path = (folder / truth["file"]).resolve()
    expects_answer = truth["kind"] == "answer"
    try:
        config, spec, job = _read(path)
    except VramplanError as error:
        message = str(error).replace(str(path), path.name)
        refusable = truth.get("refusable", not expects_answer)
        reasons = [refusable] if isinstance(refusable, str) else truth.get("mentions", [])
        names_reason = all(_mentions(_without(path, message), words) for words in reasons)
        is_broken = BROKEN.search(message) is not None
        if not expects_answer or (refusable and names_reason and not is_broken):
            detail = message if names_reason else f"does not name {reasons}: {message}"
            return Outcome(truth["file"], "rightly refused" if names_reason else "failed", detail)
        return Outcome(truth["file"], "failed" if is_broken else "refused", message)
    except Exception as error:
        return Outcome(truth["file"], "failed", f"{type(error).__name__}: {error}")
    if not expects_answer:
        kind = "asked about" if truth["kind"] == "ask" else "refused"
        return Outcome(truth["file"], "misread", f"answered as {_summary(config, job)}; is to be {kind}")
    differences = list(_differences(truth, config, spec, job))
    return Outcome(truth["file"], "misread" if differences else "right", "; ".join(differences))


def _read(path: Path) -> tuple[ParsedConfig, ModelSpec, Job]:
    """The configuration as ``vramplan check`` reads it in the file's folder, with its model and its whole job."""
    with _apart_from_this_machine(path.parent):
        detected = from_path(path, None, environment={})
        config = read_config.read(detected, 1)
        spec = read_config.model_of(None, config, detected)
        if spec.published_dtype not in (None, "bf16"):
            config = read_config.read(detected._replace(source=replace(detected.source, model=spec)), 1)
        return config, spec, Job(**read_config.complete_with_model(spec, config, dict(config.job)))


@contextmanager
def _apart_from_this_machine(folder: Path) -> Iterator[None]:
    """Runs in `folder`, without the network, the Hub client's cache and the versions that are installed."""

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("no network in this check")

    before = Path.cwd()
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(patch.dict(os.environ, {"HF_HUB_OFFLINE": "1", "HF_HOME": cache}))
        stack.enter_context(patch.object(socket.socket, "connect", refuse))
        stack.enter_context(patch.object(parsed_config, "installed_version", return_value=None))
        stack.callback(os.chdir, before)
        os.chdir(folder)
        yield


def _differences(truth: dict[str, Any], config: ParsedConfig, spec: ModelSpec, job: Job) -> Iterator[str]:
    if not any(_plain(config.framework).startswith(_plain(name)) for name in truth["framework"].split("|")):
        yield f"framework: {config.framework}, not {truth['framework']}"
    if "version" in truth and not f"{config.version}.".startswith(f"{truth['version']}."):
        yield f"version: {config.version}, not {truth['version']}"
    if "model" in truth and not _same_model(spec, truth["model"]):
        yield f"model: {spec.name}, not {truth['model']}"
    for field, expected in truth.get("job", {}).items():
        actual = _field(field, config, job)
        if not (field == "num_gpus" and expected is None) and not _equal(actual, expected):
            yield f"{field}: {actual}, not {expected}"
    text = "\n".join(f"{note.key} {note.text}" for note in config.notes)
    yield from (f"no note on {words}" for words in truth.get("mentions", ()) if not _mentions(text, words))


def _field(field: str, config: ParsedConfig, job: Job) -> Any:
    if field in AS_WRITTEN:
        return config.job.get(field)
    value: Any = job
    for name in field.split("."):
        value = getattr(value, name)
    return value


def _equal(actual: Any, expected: Any) -> bool:
    if isinstance(expected, str):
        return actual in expected.split("|")
    if isinstance(expected, list) and isinstance(actual, (list, tuple)):
        return sorted(map(str, actual)) == sorted(map(str, expected))
    return bool(actual == expected)


def _mentions(text: str, words: str) -> bool:
    """Whether one of `words` stands in the text, as a word of its own or between underscores."""
    return any(
        re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text, re.IGNORECASE)
        for word in words.split("|")
    )


def _without(path: Path, text: str) -> str:
    """The text without the file's own name, which may be that of the reason."""
    return text.replace(path.name, "")


def _same_model(spec: ModelSpec, name: str) -> bool:
    """Whether the model has the shape of the shipped model `name`: instruction-tuned models are aliases of a base."""
    expected = find_model(name)
    if expected is None:
        return spec.name.lower() == name.lower()
    keys = ("model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "text_config", "n_embd", "n_layer")
    return all(spec.config.get(key) == expected.config.get(key) for key in keys)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _summary(config: ParsedConfig, job: Job) -> str:
    return (
        f"{config.framework} {job.method} {job.quantize}, batch {job.micro_batch_size} x "
        f"{job.gradient_accumulation_steps}, {job.strategy} x {job.num_gpus}"
    )


def table(outcomes: list[Outcome]) -> str:
    """Counts by folder and class."""
    counts = Counter((one.file.split("/")[0], one.result) for one in outcomes)
    rows = [(name, [counts[name, result] for result in CLASSES]) for name in sorted({name for name, _ in counts})]
    rows.append(("all", [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]))
    lines = ["  ".join(["folder".ljust(16), *CLASSES, "files"])]
    for name, numbers in rows:
        cells = [str(number).rjust(len(result)) for number, result in zip(numbers, CLASSES, strict=True)]
        lines.append("  ".join([name.ljust(16), *cells, str(sum(numbers)).rjust(5)]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table; the exit code is 1 if a file is misread or failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.people", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prefixes", nargs="*", help="paths below tests/configs/people, or their beginnings")
    parser.add_argument("--list", action="store_true", help="list the files that are right as well")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON lines")
    options = parser.parse_args(arguments)
    chosen = [truth for truth in truths() if truth["file"].startswith(tuple(options.prefixes) or "")]
    outcomes = [outcome(truth) for truth in chosen]
    if options.json:
        print("\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in outcomes))
    else:
        print(table(outcomes), end="\n\n")
        is_right = ("right", "rightly refused")
        for one in sorted(outcomes, key=lambda one: (CLASSES.index(one.result), one.file)):
            if options.list or one.result not in is_right:
                print(f"{one.result}: {one.file}" + (f"\n    {one.detail}" if one.detail else ""))
    return int(any(one.result in ("misread", "failed") for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
