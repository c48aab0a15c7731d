"""Results kept between runs: whole entries alone, a bounded folder, and every folder that cannot be used left alone."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from vramplan import disk_cache

as_root = hasattr(os, "geteuid") and os.geteuid() == 0
posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of POSIX")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("VRAMPLAN_CACHE", str(folder))
    monkeypatch.delenv("VRAMPLAN_NO_CACHE", raising=False)
    monkeypatch.setattr(disk_cache, "_notice", None)
    monkeypatch.setattr(disk_cache, "_disabled", False)
    return folder


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_stored_is_loaded(folder: Path):
    assert disk_cache.load("plays", "a key") is None
    assert not folder.exists(), "looking for an entry makes no folder"
    disk_cache.store("plays", "a key", b"\x00content\n")
    assert disk_cache.load("plays", "a key") == b"\x00content\n"
    assert disk_cache.load("plays", b"a key") == b"\x00content\n"
    assert disk_cache.load("rows", "a key") is None
    assert disk_cache.load("plays", "a key ") is None
    disk_cache.store("plays", "a key", b"")
    assert disk_cache.load("plays", "a key") == b""
    assert len(files(folder)) == 1
    assert disk_cache.notice() is None


def test_what_an_interrupted_or_another_program_left_is_no_entry(folder: Path):
    disk_cache.store("plays", "first", b"content of the first")
    (path,) = files(folder)
    whole = path.read_bytes()
    disk_cache.store("plays", "second", b"content of the second")
    (other,) = (name for name in files(folder) if name != path)
    broken = [whole[:length] for length in range(len(whole))]
    broken += [whole + b"\x00", other.read_bytes(), b"{}", bytes(len(whole))]
    broken += [whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :] for index in range(len(whole))]
    for content in broken:
        path.write_bytes(content)
        assert disk_cache.load("plays", "first") is None
    path.write_bytes(whole)
    assert disk_cache.load("plays", "first") == b"content of the first"
    path.unlink()
    path.mkdir()
    assert disk_cache.load("plays", "first") is None
    disk_cache.store("plays", "first", b"new")
    assert disk_cache.load("plays", "first") is None
    assert "cannot be written" in (disk_cache.notice() or "")
    assert files(folder) == [other], "nothing unfinished stays behind"


@posix
def test_a_pipe_in_the_place_of_an_entry_does_not_block(folder: Path):
    disk_cache.store("plays", "key", b"content")
    (path,) = files(folder)
    path.unlink()
    os.mkfifo(path)
    assert disk_cache.load("plays", "key") is None


def test_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch):
    disk_cache.store("plays", "key", b"content")
    for value, kept in (("1", False), ("true", False), ("0", True), ("", True)):
        monkeypatch.setenv("VRAMPLAN_NO_CACHE", value)
        assert disk_cache.is_enabled() is kept
        assert disk_cache.load("plays", "key") == (b"content" if kept else None)
    disk_cache.disable()
    disk_cache.store("plays", "other", b"content")
    assert disk_cache.load("plays", "key") is None
    assert len(files(folder)) == 1


def test_a_file_instead_of_a_folder(folder: Path):
    folder.write_text("mine")
    disk_cache.store("plays", "key", b"content")
    assert disk_cache.load("plays", "key") is None
    assert disk_cache.notice() == f"results are not kept: {folder} is not a folder"
    assert folder.read_text() == "mine"


@posix
@pytest.mark.parametrize("inner", [False, True])
def test_a_folder_that_every_user_can_write(folder: Path, inner: bool):
    disk_cache.store("plays", "key", b"content")
    path = next(folder.iterdir()) if inner else folder
    path.chmod(0o777)
    disk_cache.store("plays", "other", b"content")
    assert disk_cache.load("plays", "key") is None
    assert disk_cache.notice() == f"results are not kept: {path} can be written by every user"
    assert len(files(folder)) == 1


@posix
def test_a_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch):
    disk_cache.store("plays", "key", b"content")
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    disk_cache.store("plays", "other", b"content")
    assert disk_cache.load("plays", "key") is None
    assert disk_cache.notice() == f"results are not kept: {folder} belongs to another user"
    assert len(files(folder)) == 1


@posix
def test_entries_are_the_users_own(folder: Path):
    disk_cache.store("plays", "key", b"content")
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@posix
@pytest.mark.skipif(as_root, reason="root can write everywhere")
def test_a_read_only_folder_is_read(folder: Path):
    disk_cache.store("plays", "key", b"content")
    (path,) = files(folder)
    path.parent.chmod(0o500)
    try:
        disk_cache.store("plays", "other", b"content")
        assert disk_cache.load("plays", "key") == b"content"
        assert "cannot be written (Permission denied)" in (disk_cache.notice() or "")
    finally:
        path.parent.chmod(0o700)


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    disk_cache.store("plays", "key", b"content")
    version = next(folder.iterdir())
    assert disk_cache.notice() == f"results are not kept: {version} cannot be written (No space left on device)"
    assert files(folder) == []


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_no_folder_can_have(name: str, monkeypatch: pytest.MonkeyPatch):
    if "\0" in name:  # the environment cannot hold it
        monkeypatch.setattr(disk_cache, "_folder", lambda: f"/{name}/version")
    else:
        monkeypatch.setenv("VRAMPLAN_CACHE", f"/{name}")
    disk_cache.store("plays", "key", b"content")
    assert disk_cache.load("plays", "key") is None
    assert (disk_cache.notice() or "").startswith("results are not kept: /")


def test_a_result_that_is_too_large_is_not_kept(folder: Path):
    disk_cache.store("plays", "key", bytes(disk_cache.MAX_ENTRY_BYTES))
    assert files(folder) == []
    disk_cache.store("plays", "key", bytes(disk_cache.MAX_ENTRY_BYTES - 100))
    assert len(disk_cache.load("plays", "key") or b"") == disk_cache.MAX_ENTRY_BYTES - 100


def test_the_entries_of_all_versions_that_were_not_used_for_longest_go_first(folder: Path):
    for number in range(20):
        disk_cache.store("plays", str(number), bytes(3000))
        path = max(files(folder), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, (1_000_000 + number,) * 2)
    old = folder / "vramplan-0.0.1" / "plays"
    old.mkdir(parents=True)
    entry = old / ("ab" * 32)
    entry.write_bytes(disk_cache.MAGIC + bytes(5000))
    os.utime(entry, (1, 1))
    foreign = folder / "notes.txt"
    foreign.write_text("mine")
    assert disk_cache.load("plays", "3") is not None, "the load makes it the one that was used last"
    disk_cache.prune(str(folder), 22 * disk_cache.BLOCK_BYTES)
    assert len(files(folder)) == 22, "they take no more than is allowed"
    disk_cache.prune(str(folder), 20 * disk_cache.BLOCK_BYTES)
    left = [number for number in range(20) if disk_cache.load("plays", str(number)) is not None]
    assert left == [3, *range(6, 20)]
    assert not old.parent.exists(), "an empty folder goes as well"
    assert foreign.read_text() == "mine"


def test_what_a_killed_process_left_unfinished_goes(folder: Path):
    disk_cache.store("plays", "key", b"content")
    (path,) = files(folder)
    old, new = (path.with_name(name + disk_cache.UNFINISHED) for name in (".1-dead", ".2-alive"))
    for unfinished in (old, new):
        unfinished.write_bytes(disk_cache.MAGIC[:4])
    hours_ago = time.time() - 2 * disk_cache.SECONDS_TO_WRITE
    os.utime(old, (hours_ago, hours_ago))
    disk_cache.prune(str(folder))
    assert files(folder) == sorted([path, new])


def test_the_folder_stays_within_its_bound(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_cache, "BYTES_BETWEEN_PRUNINGS", 10 * disk_cache.BLOCK_BYTES)
    monkeypatch.setattr(disk_cache.prune, "__defaults__", (40 * disk_cache.BLOCK_BYTES,))
    for number in range(400):
        disk_cache.store("plays", str(number), bytes(3500))
    assert len(files(folder)) < 120


def test_a_prune_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Files and folders that vanish are neither errors nor worth a word."""
    for number in range(4):
        disk_cache.store("plays", str(number), b"content")
    entries = disk_cache._entries(str(folder))
    monkeypatch.setattr(disk_cache, "_entries", lambda root: entries)
    disk_cache.prune(str(folder), 0)
    disk_cache.prune(str(folder), 0)
    assert files(folder) == []
    make = os.makedirs
    monkeypatch.setattr(os, "makedirs", lambda path, *mode, **options: make(path, *mode, **options) or os.rmdir(path))
    disk_cache.store("plays", "key", b"content")
    assert disk_cache.notice() is None


def test_entries_of_other_code_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package, info = tmp_path / "vramplan", tmp_path / f"vramplan-{disk_cache.__version__}.dist-info"
    (package / "__pycache__").mkdir(parents=True)
    module = package / "a.py"
    module.write_text("x = 1")
    monkeypatch.setattr(disk_cache, "PACKAGE", str(package))

    def version() -> str:
        disk_cache._version.cache_clear()
        return disk_cache._version()

    try:
        first = version()
        (package / "__pycache__" / "a.pyc").write_text("compiled")
        assert version() == first
        os.utime(module, (1, 1))
        assert version() != first, "edited"
        info.mkdir()
        (info / "RECORD").touch()
        assert version() == f"vramplan-{disk_cache.__version__}", "a release"
        (info / "direct_url.json").touch()
        assert version() != f"vramplan-{disk_cache.__version__}", "installed from a folder or a repository"
    finally:
        disk_cache._version.cache_clear()


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/fast/cache"}, "/fast/cache/vramplan"),
        ("linux", {"XDG_CACHE_HOME": "relative", "HOME": "/home/a"}, "/home/a/.cache/vramplan"),
        ("linux", {"HOME": "/home/a"}, "/home/a/.cache/vramplan"),
        ("linux", {"HOME": "nowhere"}, None),
        ("darwin", {"HOME": "/Users/a", "XDG_CACHE_HOME": "/x"}, "/Users/a/Library/Caches/vramplan"),
    ],
)
@posix
def test_the_users_folder(
    platform: str, variables: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name in ("VRAMPLAN_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    folder = disk_cache._folder()
    assert (folder and os.path.dirname(folder)) == expected
    assert (disk_cache.notice() is None) is (expected is not None)


def _store_many(first: int) -> bool:
    for number in range(first, first + 60):
        content = str(number % 40).encode() * 5000
        disk_cache.store("plays", str(number % 40), content)
        loaded = disk_cache.load("plays", str(number % 40))
        if loaded not in (None, content):
            return False
        if number % 20 == 0:
            disk_cache.prune(os.environ["VRAMPLAN_CACHE"], 100_000)
    return disk_cache.notice() is None


def test_processes_that_write_the_same_entries(folder: Path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_store_many, [0, 7, 13]) == [True] * 3
    assert not [path for path in files(folder) if path.name.startswith(".")]


def test_files_that_are_not_its_own_stay(folder: Path):
    """The folder may be the parent of a checkout: neither a name nor a content alone makes an entry."""
    others = {
        "vramplan-fork/docs/notes.md": b"notes",
        "vramplan-fork/docs/.notes": b"notes",
        "vramplan-0.1.0/docs/.hidden": b"",
        "vramplan-fork/weights/model.bin": bytes(1 << 20),
        f"vramplan-fork/hashes/{'0' * 64}": b"of another program",
        "vramplan-fork/hashes/named": disk_cache.MAGIC,
        f"elsewhere/searches/{'1' * 64}": disk_cache.MAGIC,
    }
    for name, content in others.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        os.utime(folder / name, (1, 1))
    folder.chmod(0o700)
    disk_cache.store("plays", "a key", bytes(1000))
    disk_cache.prune(str(folder), max_bytes=1)
    assert disk_cache.load("plays", "a key") is None, "an entry goes"
    assert {str(path.relative_to(folder)): path.read_bytes() for path in files(folder)} == others
