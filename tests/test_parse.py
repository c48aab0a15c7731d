"""The small parser of the command line: what it reads, it reads as typer does; all else it leaves to typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer

from vramplan.cli import typer_app
from vramplan.cli.commands import COMMANDS, function_of
from vramplan.cli.parameters import Parameter, declared, parameter_of
from vramplan.cli.parse import parse

TEXTS = {
    str: ["a", "rtx4090,h100*", "two words", "", "-3", "-", "key=value", "--gpu", "é\u200b", "1e3", "\x00"],
    int: ["0", "16", "-3", "+7", "007", "999999999999999999999"],
    float: ["0.9", "1", "-1.5", ".5", "5.", "1e-3", "2E5"],
    Path: ["missing.json", ".", "a/../b", "~/x", "pyproject.toml", "é"],
}
"""Texts that are values of each type."""


def parameters_of(command: str) -> list[Parameter]:
    return [parameter_of(one) for one in declared(function_of(command)).values()]


def reader_of_typer(command: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], dict[str, Any]]:
    """From words to what typer passes to the command."""
    passed: list[dict[str, Any]] = []

    def record(**values: Any) -> None:
        passed.append(values)

    record.__name__ = command.rpartition(" ")[2]
    record.__signature__ = inspect.Signature([*declared(function_of(command)).values()])  # type: ignore[attr-defined]
    monkeypatch.setattr(typer_app, "function_of", lambda _: record)
    group = typer.main.get_command(typer_app.app_of([command]))

    def read(words: list[str]) -> dict[str, Any]:
        group([*command.split(), *words], standalone_mode=False)
        return passed.pop()

    return read


def line(parameters: list[Parameter], random: Random) -> list[str]:
    """Words of a well-formed line with some of the options, in any order, and its arguments."""
    groups: list[list[str]] = []
    after: list[str] = []
    for parameter in parameters:
        if not parameter.names:
            values = ["qwen2.5-7b", "a b", "-", "", "x=y"] if parameter.type is str else ["missing.json", "a b", "."]
            texts = random.choices(values, k=random.randint(1, 3))
            texts = texts if parameter.is_list else texts[:1]
            if not parameter.is_required and random.random() < 0.5:
                continue
            if random.random() < 0.2:
                after = ["--", *texts, *(["--gpu", "-v"] if parameter.is_list else [])]
            else:
                groups += [[text] for text in texts]
        elif parameter.is_required or random.random() < 0.3:
            for _ in range(random.choice([1, 1, 1, 2])):
                name = random.choice(parameter.names)
                if parameter.type is bool:
                    groups.append([name])
                    continue
                least = parameter.described.min
                texts = [text for text in TEXTS[parameter.type] if least is None or int(text) >= least]
                text = random.choice(texts)
                groups.append([f"{name}={text}"] if random.random() < 0.3 else [name, text])
    random.shuffle(groups)
    return [word for group in groups for word in group] + after


@pytest.mark.parametrize("command", COMMANDS)
def test_well_formed_lines_are_read_as_typer_reads_them(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random, parameters = Random(command), parameters_of(command)
    read_by_typer = reader_of_typer(command, monkeypatch)
    for _ in range(40):
        words = line(parameters, random)
        values = parse(parameters, words)
        assert values is not None, words
        by_typer = read_by_typer(words)
        assert values == by_typer, words
        assert {key: type(value) for key, value in values.items()} == {key: type(by_typer[key]) for key in values}


@pytest.mark.parametrize(
    "words",
    [
        ["qwen2.5-7b"],  # no --gpu
        ["--gpu", "h100"],
        ["qwen2.5-7b", "--gpu"],
        ["qwen2.5-7b", "more", "--gpu", "h100"],
        ["qwen2.5-7b", "--gpu", "h100", "--help"],
        ["qwen2.5-7b", "--gpu", "h100", "--nonsense"],
        ["qwen2.5-7b", "--gpu", "h100", "-x"],
        ["qwen2.5-7b", "--gpu", "h100", "-vv"],
        ["qwen2.5-7b", "--gpu", "h100", "--json=yes"],
        ["qwen2.5-7b", "--gpu", "h100", "--no-json"],
        ["qwen2.5-7b", "--gp", "h100"],
        *(
            ["qwen2.5-7b", "--gpu", "h100", option, text]
            for option, text in [
                ("--seq-len", ""),
                ("--seq-len", "x"),
                ("--seq-len", "1.5"),
                ("--seq-len", "1_000"),
                ("--seq-len", " 7"),
                ("--seq-len", "٧"),
                ("--confidence", "nan"),
                ("--confidence", "inf"),
                ("--confidence", "1_0.5"),
                ("--confidence", "high"),
                ("--job", ""),
            ]
        ),
    ],
)
def test_other_lines_are_left_to_typer(words: list[str]) -> None:
    assert parse(parameters_of("estimate"), words) is None


def test_a_value_below_the_smallest_is_left_to_typer() -> None:
    assert parse(parameters_of("check"), ["train.yaml", "--seq-len", "0"]) is None
    assert parse(parameters_of("check"), []) is None


def test_a_file_that_cannot_be_read_is_left_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["qwen2.5-7b", "--gpu", "h100", "--job", "pyproject.toml"]
    monkeypatch.setattr("os.access", lambda *_: False)
    assert parse(parameters_of("estimate"), words) is None


def test_windows_leaves_patterns_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--models", "qwen2.5-*", "--gpus", "h100"]
    assert parse(parameters_of("table"), words) is not None
    monkeypatch.setattr("vramplan.cli.parse.os.name", "nt")
    assert parse(parameters_of("table"), words) is None
