"""Results that are kept between runs: bytes by a key that names everything they depend on.

Entries lie in ``$VRAMPLAN_CACHE``, or else in the user's cache folder, at most `MAX_BYTES` of them. They are data,
never code: a caller must read them with a format that cannot run anything. An entry carries its key and a checksum, so
a broken, truncated or foreign file is no entry. Several processes may use the folder at once. A folder that cannot be
used is left alone, and :func:`notice` says why.

This module imports little: it is on the way of every answer that is already there.

Entries of another version are not seen. A release from a package index is known by its version; any other code, such as
a checkout or an installation from a repository, by the sizes and times of the package's files as well, so that an edit
is enough to begin anew.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from functools import cache

from vramplan.version import __version__

try:
    from _blake2 import blake2b  # what hashlib has, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

MAX_BYTES = 128 << 20
"""Of all entries together; the ones that were not used for longest go first."""
MAX_ENTRY_BYTES = 8 << 20
"""Larger results are not kept."""
BYTES_BETWEEN_PRUNINGS = 4 << 20
"""The folder is looked through about once in so many bytes that are stored."""
BLOCK_BYTES = 4096
"""What a small file takes on most file systems."""
SECONDS_BETWEEN_MARKS = 3600
"""The time of an entry's last use is exact to this."""
SECONDS_TO_WRITE = 3600
"""A file that is older and was never given its name belongs to a process that was killed."""
MAGIC = b"vramplan cache 1\n"
CHECKSUM_BYTES = 16
NAME_LENGTH = 64
UNFINISHED = ".vramplan-unfinished"
"""The end of the name of a file that is being written."""
LENGTH_BYTES = 8
PACKAGE = os.path.dirname(os.path.abspath(__file__))

_disabled = False
_notice: str | None = None


def load(kind: str, key: str | bytes) -> bytes | None:
    """The content that was stored under this key; None if there is none.

    Args:
        kind: What is kept, as a folder's name; every kind has keys of its own.
        key: Everything that the content depends on, apart from vramplan's code.
    """
    folder = _folder()
    if folder is None or not (_is_private(os.path.dirname(folder)) and _is_private(folder)):
        return None
    key = _as_bytes(key)
    path = os.path.join(folder, kind, _name(key))
    try:
        content = _content(_read(path), key)
    except OSError:
        return None
    if content is not None:
        _mark_as_used(path)
    return content


def store(kind: str, key: str | bytes, content: bytes) -> None:
    """Keep `content` for :func:`load`; nothing happens if the folder cannot be written.

    Args:
        kind: As in :func:`load`.
        key: As in :func:`load`.
        content: At most `MAX_ENTRY_BYTES` with its key; larger ones are not kept.
    """
    key = _as_bytes(key)
    entry = _entry(key, content)
    folder = _folder()
    if folder is None or len(entry) > MAX_ENTRY_BYTES:
        return
    name = _name(key)
    try:
        if not _make(folder):
            return
        _write(os.path.join(folder, kind), name, entry)
    except FileNotFoundError:  # another process has just removed the empty folder
        return
    except (OSError, ValueError) as error:
        _say(f"{folder} cannot be written ({getattr(error, 'strerror', None) or error})")
        return
    # a name is as good as a random number, and the same run prunes at the same entries
    if int(name[:8], 16) * BYTES_BETWEEN_PRUNINGS < len(entry) << 32:
        prune(os.path.dirname(folder))


def disable() -> None:
    """Neither load nor store anything in this process; ``VRAMPLAN_NO_CACHE=1`` does the same."""
    global _disabled
    _disabled = True


def is_enabled() -> bool:
    """Whether results may be kept; the folder may still turn out to be unusable."""
    return not _disabled and os.environ.get("VRAMPLAN_NO_CACHE", "0") in ("", "0")


def notice() -> str | None:
    """Why results are not kept, in one line; None if they are."""
    return _notice


def prune(root: str, max_bytes: int = MAX_BYTES) -> None:
    """Remove the entries of all versions that were not used for longest, until three quarters of `max_bytes` are left.

    Nothing is removed from a folder with less than `max_bytes`. Files that vanish meanwhile are passed over.
    """
    entries = sorted(_entries(root))
    total = sum(num_bytes for _, num_bytes, _ in entries)
    abandoned = time.time() - SECONDS_TO_WRITE
    goal = total if total <= max_bytes else max_bytes * 3 // 4
    for used, num_bytes, path in entries:
        unfinished = os.path.basename(path).startswith(".")
        if total > goal or (unfinished and used < abandoned):
            with suppress(OSError):
                os.unlink(path)
                total -= num_bytes
    for parent in {os.path.dirname(path) for _, _, path in entries}:
        with suppress(OSError):  # only an empty one can be removed
            os.rmdir(parent)
            os.rmdir(os.path.dirname(parent))


def _entries(root: str) -> list[tuple[float, int, str]]:
    """(time of the last use, bytes on the disk, path) of the files that this module wrote.

    The folder may be the user's own, with other things in it: names and contents must both be those of an entry.
    """
    entries = []
    for version in _scan(root):
        for kind in _scan(version.path) if version.name.startswith("vramplan-") and _is_folder(version) else ():
            for entry in _scan(kind.path) if _is_folder(kind) else ():
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and _is_ours(entry):
                        size = -(-status.st_size // BLOCK_BYTES) * BLOCK_BYTES
                        entries.append((status.st_mtime, size, entry.path))
    return entries


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Whether this module wrote a file, by its name and its first bytes; an unfinished one may be empty."""
    unfinished = entry.name.startswith(".") and entry.name.endswith(UNFINISHED)
    if not unfinished and not (len(entry.name) == NAME_LENGTH and set(entry.name) <= set("0123456789abcdef")):
        return False
    with open(entry.path, "rb") as stream:
        begins = stream.read(len(MAGIC))
    return begins == MAGIC or (unfinished and MAGIC.startswith(begins))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _as_bytes(key: str | bytes) -> bytes:
    return key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key


def _name(key: bytes) -> str:
    return blake2b(key, digest_size=32).hexdigest()


def _entry(key: bytes, content: bytes) -> bytes:
    body = len(key).to_bytes(LENGTH_BYTES, "big") + key + content
    return MAGIC + blake2b(body, digest_size=CHECKSUM_BYTES).digest() + body


def _content(entry: bytes, key: bytes) -> bytes | None:
    """The content of a whole entry of this key."""
    begin = len(MAGIC) + CHECKSUM_BYTES
    body = memoryview(entry)[begin:]
    if (
        not entry.startswith(MAGIC)
        or blake2b(body, digest_size=CHECKSUM_BYTES).digest() != entry[len(MAGIC) : begin]
        or int.from_bytes(body[:LENGTH_BYTES], "big") != len(key)
        or body[LENGTH_BYTES : LENGTH_BYTES + len(key)] != key
    ):
        return None
    return bytes(body[LENGTH_BYTES + len(key) :])


def _read(path: str) -> bytes:
    """A regular file whole; of a larger one than this module writes, only a part.

    Raises:
        OSError: if it cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # not to wait at a named pipe
    with open(path, "rb", buffering=0, opener=lambda path, _: os.open(path, flags)) as stream:
        is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
        return stream.read(MAX_ENTRY_BYTES + 1) or b"" if is_file else b""


def _write(folder: str, name: str, entry: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    os.makedirs(folder, 0o700, exist_ok=True)
    unfinished = os.path.join(folder, f".{os.getpid()}-{os.urandom(8).hex()}{UNFINISHED}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with open(unfinished, "wb", opener=lambda path, _: os.open(path, flags, 0o600)) as stream:
            stream.write(entry)
        os.replace(unfinished, os.path.join(folder, name))
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _mark_as_used(path: str) -> None:
    """Not left to the file system, many of which do not keep the time of access."""
    with suppress(OSError):
        now = time.time()
        if now - os.stat(path).st_mtime > SECONDS_BETWEEN_MARKS:
            os.utime(path, (now, now))


def private_folder() -> str | None:
    """The cache folder, made if it is not there; None if there is none that belongs to this user alone.

    For files that :func:`load` is not for, such as compiled libraries.
    """
    root = os.environ.get("VRAMPLAN_CACHE") or _user_folder()
    try:
        if root is None:
            return None
        os.makedirs(root, 0o700, exist_ok=True)
        return root if _is_private(root) else None
    except OSError:
        return None


def _folder() -> str | None:
    """The folder of this version's entries."""
    if not is_enabled():
        return None
    root = os.environ.get("VRAMPLAN_CACHE") or _user_folder()
    return None if root is None else os.path.join(root, _version())


def _user_folder() -> str | None:
    """The platform's folder for what can be made again."""
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):  # to be ignored, as the XDG Base Directory Specification says
            base = os.path.join(home, ".cache")
    if not os.path.isabs(base):
        _say("this user has no home folder")
        return None
    return os.path.join(base, "vramplan")


def _is_private(folder: str) -> bool:
    """Whether the folder is there, and no other user can put files into it."""
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        _say(f"{folder} cannot be read ({getattr(error, 'strerror', None) or error})")
        return False
    if not stat.S_ISDIR(status.st_mode):
        _say(f"{folder} is not a folder")
    elif sys.platform != "win32" and status.st_uid != os.geteuid():
        _say(f"{folder} belongs to another user")
    elif sys.platform != "win32" and status.st_mode & stat.S_IWOTH:
        _say(f"{folder} can be written by every user")
    else:
        return True
    return False


def _make(folder: str) -> bool:
    """Make the folder if it is not there, for this user alone; whether it can be used.

    Raises:
        OSError: if it cannot be made.
    """
    for path in (os.path.dirname(folder), folder):
        if not os.path.lexists(path):
            os.makedirs(path, 0o700, exist_ok=True)
        if not _is_private(path):
            return False
    return True


def _say(why: str) -> None:
    global _notice
    if _notice is None:
        _notice = f"results are not kept: {why}"


@cache
def _version() -> str:
    """The name of the folder for entries of this code."""
    release = os.path.join(os.path.dirname(PACKAGE), f"vramplan-{__version__}.dist-info")
    # PEP 610: what was not installed by name from an index says so in direct_url.json
    if os.path.exists(os.path.join(release, "RECORD")) and not os.path.exists(os.path.join(release, "direct_url.json")):
        return f"vramplan-{__version__}"
    return f"vramplan-{__version__}-{_name(_state(PACKAGE).encode('utf-8', 'surrogateescape'))[:16]}"


def _state(package: str) -> str:
    """The package's files with their sizes and times."""
    lines, folders = [], [package]
    while folders:
        for entry in _scan(folders.pop()):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    folders.append(entry.path)
            else:
                with suppress(OSError):
                    status = entry.stat()
                    lines.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(sorted(lines))
