"""A command line in, what it prints out, as JSON texts: how the page of :mod:`vramplan.site` asks.

The page composes the command that it also shows for copying, so the answer to it cannot differ from the terminal's.
"""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vramplan.cli.app import BAD_INPUT, run
from vramplan.cli.commands import command_of, function_of
from vramplan.cli.parameters import declared, parameter_of
from vramplan.cli.parse import parse

ANSWERED = ("suggest", "estimate", "check", "images", "compare", "report", "models", "gpus")
"""Commands that work out something and touch nothing but the files of the request."""
MAX_REQUEST_CHARACTERS = 8 << 20


def answer(request: str) -> str:
    """The answer to one request; any request has one.

    Args:
        request: ``{"words": ["check", "train.yaml", "--json"], "files": {"train.yaml": "..."}}``: a command line
            without the program's name, and texts of the files that it names, by their names.

    Returns:
        ``{"code": 0, "text": "...", "error": "", "files": {}}``: the exit code, standard output, standard error (one
        line if the code is 2; an answer that takes long has lines of progress there), and the texts of the files that
        the command wrote or changed.
    """
    try:
        if len(request) > MAX_REQUEST_CHARACTERS:
            raise ValueError(f"a request has at most {MAX_REQUEST_CHARACTERS:,} characters")
        words, files = _request(json.loads(request))
    except (ValueError, RecursionError) as error:
        return json.dumps(_refused(f"not a request: {error}"))
    return json.dumps(_answered(words, files))


def _request(request: Any) -> tuple[list[str], dict[str, str]]:
    """The words and the files.

    Raises:
        ValueError: if it is no request.
    """
    if not isinstance(request, dict) or not {"words"} <= request.keys() <= {"words", "files"}:
        raise ValueError('expected {"words": [...], "files": {...}}')
    words, files = request["words"], request.get("files", {})
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("words: expected a list of texts")
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise ValueError("files: expected texts by name")
    for name in files:
        if not name or Path(name).name != name or "\\" in name or "\0" in name or len(name) > 200:
            raise ValueError(f"files: {name[:200]!r} is not the plain name of a file")
    return words, files


def _refused(why: str) -> dict[str, Any]:
    return {"code": BAD_INPUT, "text": "", "error": f"vramplan: {why}\n", "files": {}}


def _answered(words: Sequence[str], files: Mapping[str, str]) -> dict[str, Any]:
    command = command_of(words)
    if command not in ANSWERED:
        return _refused(f"{' '.join(words[:1])!r}: expected one of {', '.join(ANSWERED)}")
    with _folder(files), _captured() as (output, error):
        values = parse(map(parameter_of, declared(function_of(command)).values()), words[len(command.split()) :])
        if values is None:  # typer, which would say why, is not loaded
            return _refused(f"not a complete command line: vramplan {shlex.join(words)}")
        if not any(values.get(form) for form in ("as_json", "html", "for_framework")):  # tables for a terminal
            return _refused(f"vramplan {shlex.join(words)}: add --json")
        code = run(words)
        written = {path.name: path.read_text(encoding="utf-8") for path in Path().iterdir()}
        return {
            "code": code,
            "text": output.getvalue().decode(),
            "error": error.getvalue().decode(),
            "files": {name: text for name, text in written.items() if files.get(name) != text},
        }


@contextmanager
def _folder(files: Mapping[str, str]) -> Iterator[None]:
    """A working folder with these files, for the time of an answer."""
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_bytes(text.encode("utf-8", "replace"))
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@contextmanager
def _captured() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """What is printed to standard output and to standard error, as UTF-8 with the line ends that were printed."""
    output, error = io.BytesIO(), io.BytesIO()
    as_output, as_error = (
        io.TextIOWrapper(stream, "utf-8", "replace", newline="\n", write_through=True) for stream in (output, error)
    )
    with redirect_stdout(as_output), redirect_stderr(as_error):
        yield output, error
