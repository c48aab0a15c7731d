"""The installed version of a package: the same as importlib.metadata says."""

from __future__ import annotations

import sys
import zipfile
from importlib.metadata import distributions, version
from pathlib import Path

import pytest

from vramplan.frameworks.installed import installed_version


def test_all_that_is_installed_here() -> None:
    names = sorted({str(one.metadata["Name"]) for one in distributions()})
    assert {"pydantic", "rich", "pytest"} <= {*names}
    for name in names:
        assert installed_version(name) == version(name)
        assert installed_version(name.upper().replace("-", "_")) == version(name)
    assert installed_version("no-such-package") is None


def describe(folder: Path, file: str) -> None:
    (folder / file).mkdir()
    (folder / file / "METADATA").write_text("Metadata-Version: 2.1\nName: made.up_name\nVersion: 1.5\n")


@pytest.mark.parametrize("file", ["made.up_name-1.5.dist-info", "Made_Up_Name-1.5.dist-info"])
def test_names_are_compared_as_installers_do(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe(tmp_path, file)
    assert installed_version("made-up-name") is None
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path), str(tmp_path / "missing")])
    assert installed_version("made-up-name") == "1.5"


def test_what_cannot_be_listed_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("made_up_name-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1.5\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "a.zip")])
    assert installed_version("made-up-name") == "1.5"
