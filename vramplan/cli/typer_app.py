"""The command line as typer's: help, messages about mistakes, completion, and lines that are not plain."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, get_args

import typer

from vramplan.cli.commands import COMMANDS, GROUPS, call, function_of
from vramplan.cli.help import Command, Group
from vramplan.cli.parameters import Argument, Rest, declared
from vramplan.cli.version import program, version_line


def app_of(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with the commands of these names."""
    app = typer.Typer(
        name="vramplan",
        cls=Group,
        help="What a training run needs of a GPU, before it runs.",
        epilog="""\
vramplan suggest Qwen/Qwen2.5-7B-Instruct --gpu rtx4090 --global-batch 16
vramplan check train.yaml --gpu rtx4090
vramplan gpus 4090""",
        invoke_without_command=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    groups: dict[str, typer.Typer] = {}
    for name in names:
        group, _, own_name = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = _group(app, group)
        command, function = COMMANDS[name], function_of(name)
        ends_options = any(isinstance(get_args(p.annotation)[1], Rest) for p in declared(function).values())
        settings = {"allow_interspersed_args": not ends_options}
        groups.get(group, app).command(
            own_name, cls=Command, rich_help_panel=command.panel, epilog=command.examples, context_settings=settings
        )(_declare(function))
    return app


def _group(app: typer.Typer, name: str) -> typer.Typer:
    """A group of commands inside the command line."""
    panel, text = GROUPS[name]
    group = typer.Typer(cls=Group, invoke_without_command=True, rich_markup_mode=None)
    group.callback()(_help)
    app.add_typer(group, name=name, help=text, rich_help_panel=panel)
    return group


def run(names: Iterable[str], words: Sequence[str]) -> Any:
    """Read the words of a command line with typer, and run the command that they name.

    Returns:
        The exit code, or None for 0.
    """
    try:
        return app_of(names)([*words], standalone_mode=False, prog_name=program())
    except typer.Abort:
        raise KeyboardInterrupt from None
    except SystemExit:  # typer's own way out when the reader of a pipe goes away; 1 would say "does not fit"
        return 0


def _version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    _help(context)


def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def _declare(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameters are declared in typer's terms."""

    def run(**values: Any) -> Any:
        return call(command, values)

    parameters = [_declaration(parameter) for parameter in declared(command).values()]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _declaration(parameter: inspect.Parameter) -> inspect.Parameter:
    hint: Any
    hint, described = get_args(parameter.annotation)
    make = typer.Argument if isinstance(described, Argument) else typer.Option
    declaration = make(
        *described.names,
        help=described.help,
        metavar=described.metavar,
        min=described.min,
        show_default=described.shows_default,
        rich_help_panel=described.panel,
        autocompletion=described.complete,
    )
    annotation = Annotated[hint, declaration]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
