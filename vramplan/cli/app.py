"""The command line: flags in, an answer or one line of error out.

Exit codes: 0 fits, 1 does not fit, 2 bad input, 70 a defect of vramplan itself.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated

import typer

from vramplan.cli import accuracy, catalog, check, images, measure, probe, report, suggest, table
from vramplan.errors import VramplanError

DEFECT = 70
"""sysexits.h: EX_SOFTWARE."""

app = typer.Typer(
    name="vramplan",
    help="What a training run needs of a GPU, before it runs.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for command in (
    suggest.suggest,
    suggest.estimate,
    check.check,
    images.images,
    report.report,
    report.compare,
    table.table,
    probe.probe,
    measure.measure,
    accuracy.accuracy,
    catalog.models,
    catalog.gpus,
):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        from vramplan.version import __version__

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
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
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
        if message is None:  # a defect of ours, which must not look like the answer "does not fit"
            traceback.print_exc()
            sys.exit(DEFECT)
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
