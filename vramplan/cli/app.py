"""The command line: flags in, an answer or one line of error out.

Exit codes: 0 fits, 1 does not fit, 2 bad input, 70 a defect of vramplan itself.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from vramplan.cli.commands import COMMANDS, call, command_of, function_of
from vramplan.cli.parameters import declared, parameter_of
from vramplan.cli.parse import parse
from vramplan.errors import VramplanError
from vramplan.visible import visible, visible_lines

BAD_INPUT = 2
DEFECT = 70
"""sysexits.h: EX_SOFTWARE."""

LONGEST_ERROR = 2000
"""Characters of an error that are printed: it may quote a value of any length."""

COMPLETION = "_VRAMPLAN_COMPLETE"
"""Set by the shell when it asks for completions, which are typer's."""

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Python looks for cycles of garbage each 700 to 2,000 objects; importing and estimating makes many that stay."""


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # looking for any takes longer than most answers
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)  # nothing is searched for cycles at exit: a tenth of the time of a short command
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without block characters still gets the figures
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        print("vramplan: interrupted", file=sys.stderr)
        sys.exit(130)


def run(words: Sequence[str]) -> int:
    """Print the answer to a command line; a mistake is one line on standard error.

    Returns:
        The exit code.
    """
    command = command_of(words)
    try:
        code = _run(command, words)
        sys.stdout.flush()
    except VramplanError as error:
        from vramplan.cli.options import spell_flag

        return _fail(error.spelled(spell_flag))
    except BrokenPipeError:  # the reader went away: nothing is left to say, not even at exit
        _close_output()
        return 0
    except OSError as error:  # a full disk behind the redirection
        _close_output()
        return _fail(f"the output cannot be written ({error.strerror})")
    except Exception as error:
        message = getattr(error, "format_message", None)  # typer's own usage errors
        if message is None:  # a defect of ours, which must not look like the answer "does not fit"
            import traceback

            print(visible_lines(traceback.format_exc()), end="", file=sys.stderr)
            return DEFECT
        from vramplan.cli.version import program

        return _fail(f"{message().rstrip('.')}; see `{' '.join(filter(None, (program(), command)))} --help`")
    return code if isinstance(code, int) else 0


def _run(command: str, words: Sequence[str]) -> Any:
    """Run what a well-formed line asks for; typer reads any other.

    Returns:
        The exit code, or None for 0.
    """
    if COMPLETION not in os.environ:
        if words == ["--version"]:
            from vramplan.cli.version import version_line

            print(version_line())
            return 0
        if command:
            function = function_of(command)
            parameters = [*map(parameter_of, declared(function).values())]
            start = len(command.split())
            values = parse(parameters, words[start:])
            if values is None:
                from vramplan.cli.usual_options import as_declared

                words = [*words[:start], *as_declared(words[start:], parameters)]
                values = parse(parameters, words[start:])
            if values is not None:
                return call(function, values)
        elif words[:1] == ["-h"]:
            words = ["--help"]
    from vramplan.cli import typer_app

    return typer_app.run([command] if command and COMPLETION not in os.environ else COMMANDS, words)


def _close_output() -> None:
    """What is still buffered goes nowhere: the interpreter would try to write it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(line: str) -> int:
    line = visible(" ".join(line.split()))
    line = line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]} ..."
    print(f"vramplan: {line}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    main()
