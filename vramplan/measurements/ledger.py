"""The ledger: a folder with one JSON file for each measured run."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from vramplan.atomic_write import write
from vramplan.errors import ConfigError
from vramplan.memory.measurement import Measured

History = Sequence[tuple[str, int, int]]
"""Every (action, address, bytes) of torch's allocator, as torch.cuda.memory._snapshot names them."""


def save(folder: Path, one: Measured, history: History = ()) -> Path:
    """Put an entry into the folder, whole or not at all; the same run measured again takes its own place.

    A history goes into a compressed file beside it.

    Raises:
        ConfigError: where the folder cannot be written, a full disk included.
    """
    make(folder)
    if history:
        one = one.model_copy(update={"history": f"{one.identity}.history.gz"})
        assert one.history is not None
        write(folder / one.history, gzip.compress(json.dumps(history, separators=(",", ":")).encode(), mtime=0))
    path = folder / f"{one.identity}.json"
    write(path, dumps(one).encode())
    return path


def make(folder: Path) -> None:
    """The folder, if it is not there.

    Raises:
        ConfigError: where it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error


def load_history(folder: Path, one: Measured) -> History:
    """Every allocation and free of an entry's run; nothing where they were not recorded.

    Raises:
        ConfigError: for a file that is missing or broken.
    """
    if one.history is None:
        return ()
    path = folder / one.history
    try:
        return [(action, address, size) for action, address, size in json.loads(gzip.decompress(path.read_bytes()))]
    except OSError as error:  # gzip's own errors are among them
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, TypeError, EOFError) as error:
        raise ConfigError(f"{path}: no history of allocations ({error})") from error


def dumps(one: Measured) -> str:
    """An entry as its file holds it: every setting of the job, since defaults may change."""
    return json.dumps(one.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def load(path: Path) -> Measured:
    """One entry.

    Raises:
        ConfigError: for a file that is none, naming the key.
    """
    try:
        return Measured.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = f"{path}: {f'{key}: ' if key else ''}{first['msg'][0].lower()}{first['msg'][1:]}"
        raise ConfigError(f"{said}; delete it, and that run is measured again") from error


def load_all(folder: Path) -> list[Measured]:
    """Every entry of the folder, by name.

    Raises:
        ConfigError: for a folder that is not there, or a file in it that is no entry.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of measured runs")
    return [load(path) for path in sorted(folder.glob("*.json"))]
