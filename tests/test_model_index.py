"""The index of shipped models: the same names and aliases as the specs themselves, and never an old answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vramplan.inputs import catalog
from vramplan.inputs.model_index import INDEX, read_index, write_index

FEW = ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B", "openai-community/gpt2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some specs and their index."""
    for name in FEW:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(catalog.specs_folder() / f"{name}.json", tmp_path / f"{name}.json")
    write_index(tmp_path, tmp_path / INDEX)
    return tmp_path


def without_index(folder: Path) -> dict[str, list[str]]:
    (folder / INDEX).unlink(missing_ok=True)
    return {**read_index(folder)}


def test_the_index_says_what_the_specs_say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = json.loads((folder / INDEX).read_text())
    aliases = {**read_index(folder)}
    monkeypatch.setattr("vramplan.inputs.model_index._aliases_of", lambda *_: pytest.fail("a spec was opened"))
    assert {**read_index(folder)} == aliases
    monkeypatch.undo()
    assert index["aliases"] == aliases == without_index(folder)
    assert list(aliases) == sorted(FEW)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "Qwen" / "Qwen2.5-7B.json").unlink(),
        lambda folder: shutil.copy(folder / "Qwen" / "Qwen2.5-7B.json", folder / "Qwen" / "New.json"),
        lambda folder: (folder / "Qwen" / "Qwen2.5-7B.json").write_text('{"name": "a", "aliases": ["b"]}'),
        lambda folder: (folder / INDEX).write_text("{"),
        lambda folder: (folder / INDEX).write_text("[]"),
        lambda folder: (folder / INDEX).write_text("{}"),
        lambda folder: (folder / INDEX).write_bytes(b"\xff"),
    ],
)
def test_an_index_that_is_old_or_broken_is_not_used(folder: Path, change: Callable[[Path], object]) -> None:
    change(folder)
    found = {**read_index(folder)}
    assert found == without_index(folder)


def test_models_are_found_with_and_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, aliases = catalog.model_names(), catalog.aliases()
    copied = tmp_path / "model_specs"
    shutil.copytree(catalog.specs_folder(), copied)
    write_index(copied, copied / INDEX)
    monkeypatch.setattr(catalog, "specs_folder", lambda: copied)
    catalog._aliases_by_name.cache_clear()
    try:
        assert (catalog.model_names(), catalog.aliases()) == (names, aliases)
        assert list(catalog.aliases()) == list(aliases)
        assert catalog.find_model("qwen2.5-7b") is not None
    finally:
        catalog._aliases_by_name.cache_clear()
