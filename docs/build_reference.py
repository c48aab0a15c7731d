"""MkDocs hook: writes the reference pages from the code, so that no command, option or name is missing.

Commands and options come from the typer application, the Python names from ``vramplan.__all__``. Only `on_files`
needs MkDocs; the tests call the other functions without it.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

import vramplan
from vramplan.cli.commands import COMMANDS
from vramplan.cli.panels import PANELS
from vramplan.cli.typer_app import app_of
from vramplan.render.json_schema import schema_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

EXIT_CODES = """
## Exit codes

| code | meaning |
|---|---|
| 0 | The job fits, or the command did what it was asked to do. |
| 1 | The job does not fit; with `table --check`, a table is stale. |
| 2 | Invalid input: the message on standard error names it. |
| 70 | A defect of vramplan. Please report it. |
| 130 | Interrupted with Ctrl-C. |
"""


def commands() -> dict[str, Any]:
    """The commands of the command line by name; of two words if they are in a group."""
    group: Any = typer.main.get_command(app_of())
    return {name: _in_group(group, name.split()) for name in COMMANDS}


def _in_group(group: Any, words: list[str]) -> Any:
    for word in words:
        group = group.commands[word]
    return group


def page_of(name: str) -> str:
    """The name of a command's page and schema."""
    return name.replace(" ", "-")


def groups() -> dict[str, list[str]]:
    """Names of all commands by task, as the help lists them."""
    by_task: dict[str, list[str]] = {}
    for name, command in COMMANDS.items():
        by_task.setdefault(command.panel, []).append(name)
    return by_task


def escaped(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def option_table(title: str, rows: list[tuple[str, str]]) -> str:
    """Options with their help."""
    if not rows:
        return ""
    lines = [f"\n## {title}\n", "| option | description |", "|---|---|"]
    lines += [f"| `{' '.join(flag.split())}` | {escaped(text)} |" for flag, text in rows]
    return "\n".join(lines) + "\n"


def type_name(schema: dict[str, Any]) -> str:
    """A property's type in a JSON schema, in a few words."""
    if "anyOf" in schema:
        return " or ".join(type_name(option) for option in schema["anyOf"])
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if schema.get("type") == "array":
        return f"array of {type_name(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def json_section(name: str) -> str:
    """What `--json` prints: the fields of the outermost object, and where the whole schema is."""
    try:
        schema = schema_of(name)
    except KeyError:
        return ""
    root = schema.get("items", schema)
    where = f"../schemas/{page_of(name)}.json"
    text = f"\n## JSON output\n\n`--json` prints data of [this JSON schema]({where}). Sizes are in bytes.\n"
    for option in root.get("anyOf", [root]):
        kind = schema["$defs"][option["$ref"].rpartition("/")[2]] if "$ref" in option else option
        if "properties" not in kind:
            continue
        title = [f"\n{kind['description']}\n"] if "anyOf" in root else []
        rows = [f"| `{key}` | {escaped(type_name(value))} |" for key, value in kind["properties"].items()]
        text = "\n".join([text, *title, "| field | type |", "|---|---|", *rows]) + "\n"
    return text


def command_page(name: str) -> str:
    """The reference page of a command."""
    command = commands()[name]
    context = command.make_context(name, [], resilient_parsing=True)
    arguments, panels = [], {title: [] for title in PANELS}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if not parameter.opts[0].startswith("--"):
            arguments.append(record)
        elif record is not None:
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
    panels.setdefault("Options", []).append(("--help", "Show the help of the command and exit."))
    usage = " ".join(["vramplan", name, *command.collect_usage_pieces(context)])
    describes_job = any(parameter.name == "job" for parameter in command.params)
    return "".join(
        [
            f"# vramplan {name}\n\n{command.help}\n\n```text\n{usage}\n```\n",
            f"\nExamples:\n\n```text\n{command.epilog}\n```\n" if command.epilog else "",
            option_table("Arguments", arguments),
            *(option_table(title, rows) for title, rows in panels.items()),
            "\n[Settings of a job](../options.md) explains them.\n" if describes_job else "",
            json_section(name),
        ]
    )


def commands_page() -> str:
    """The list of all commands."""
    lines = ["# Commands\n", "Generated from the command line itself.\n"]
    for title, names in groups().items():
        lines += [f"\n## {title}\n", "| command | description |", "|---|---|"]
        lines += [f"| [`vramplan {name}`]({page_of(name)}.md) | {escaped(commands()[name].help)} |" for name in names]
    lines.append("\n`vramplan --version` prints the version, `vramplan --help` the list of commands.\n")
    return "\n".join(lines) + EXIT_CODES


def python_page() -> str:
    """The reference of the Python API: one entry for every name in ``vramplan.__all__``."""
    names = [name for name in vramplan.__all__ if not name.startswith("__")]
    functions = [name for name in names if name.islower()]
    classes = [name for name in names if not name.islower()]
    lines = [
        "# Python API\n",
        "`import vramplan` loads nothing else; a name is imported when it is first used. `vramplan.__version__` is the",
        "version. Sizes are in bytes.\n",
    ]
    for title, group in (("Functions", functions), ("Classes", classes)):
        lines.append(f"\n## {title}\n")
        lines += [f"::: vramplan.{name}\n" for name in group]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """All generated pages by path."""
    found = {f"reference/commands/{page_of(name)}.md": command_page(name) for name in commands()}
    return {"reference/commands/index.md": commands_page(), **found, "reference/python.md": python_page()}


def schemas() -> dict[str, str]:
    """The JSON schema of each command's `--json` by path."""
    texts = {}
    for name in commands():
        with suppress(KeyError):
            texts[f"reference/schemas/{page_of(name)}.json"] = json.dumps(schema_of(name), indent=1) + "\n"
    return texts


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every command below the entry "Commands" of the navigation."""
    names = [name for group in groups().values() for name in group]
    entries: list[Any] = [
        "reference/commands/index.md",
        *({name: f"reference/commands/{page_of(name)}.md"} for name in names),
    ]
    for section in config.nav or []:
        for entry in section.get("Reference", []):
            if "Commands" in entry:
                entry["Commands"] = entries
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for path, text in {**pages(), **schemas()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name code as ``:class:`name```; the site shows the name alone."""
    return re.sub(r":(?:class|func|meth|mod|attr):<code>~?", "<code>", html)
