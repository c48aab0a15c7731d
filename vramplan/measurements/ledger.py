"""The ledger: a folder with one JSON file for each measured run."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from vramplan.atomic_write import write
from vramplan.bounded_read import MOST_BYTES, decoded, parse_json, read_bytes
from vramplan.errors import ConfigError, setting
from vramplan.measurements.json_lines import problem
from vramplan.memory.measurement import Measured

MOST_HISTORY_BYTES = 64 << 20
"""Of one history, unpacked."""
History = Sequence[tuple[str, int, int]]
"""Every (action, address, bytes) of PyTorch's allocator, as torch.cuda.memory._snapshot names them."""


def save(folder: Path, run: Measured, history: History = ()) -> Path:
    """Write a run to the folder atomically; the same job measured again replaces the earlier run.

    A history goes to a compressed file beside it.

    Raises:
        ConfigError: if the folder cannot be written, a full disk included.
    """
    make(folder)
    if history:
        run = run.model_copy(update={"history": f"{run.identity}.history.gz"})
        assert run.history is not None
        write(folder / run.history, gzip.compress(json.dumps(history, separators=(",", ":")).encode(), mtime=0))
    path = folder / f"{run.identity}.json"
    write(path, dumps(run).encode())
    return path


def make(folder: Path) -> None:
    """Create the folder if it does not exist.

    Raises:
        ConfigError: if it cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder}: cannot be written")


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before a run that takes time; nothing is made.

    Raises:
        ConfigError: naming what is in the way.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{folder}: runs are saved in a folder, and {existing} is a file")
    if not os.access(existing, os.W_OK):
        raise ConfigError(f"{folder}: cannot be written")


def load_history(folder: Path, run: Measured) -> History:
    """Every allocation and free of a run; empty if they were not recorded.

    Raises:
        ConfigError: for a file that is missing or broken.
    """
    if run.history is None:
        return ()
    path = folder / Path(run.history).name
    try:
        with gzip.open(io.BytesIO(read_bytes(path, MOST_BYTES))) as stream:
            content = stream.read(MOST_HISTORY_BYTES + 1)
        if len(content) > MOST_HISTORY_BYTES:
            raise ConfigError(f"{path}: is larger than {MOST_HISTORY_BYTES >> 20} MiB, unpacked")
        return [(action, address, size) for action, address, size in parse_json(decoded(content, path), path)]
    except (OSError, zlib.error) as error:  # gzip's own errors
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    except (ValueError, TypeError, EOFError) as error:
        raise ConfigError(f"{path}: no history of allocations ({error})") from error


def dumps(run: Measured) -> str:
    """A run as its file's text: every setting of the job is written, since defaults may change."""
    return json.dumps(run.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def load(path: Path) -> Measured:
    """The run in a file.

    Raises:
        ConfigError: for an invalid file, naming the key.
    """
    try:
        return Measured.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {problem(error)}; delete it, and that run is measured again") from error


def load_all(folder: Path) -> list[Measured]:
    """Every run of the folder, sorted by file name.

    Raises:
        ConfigError: if the folder does not exist or one of its files is invalid.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of measured runs")
    return [load(path) for path in sorted(folder.glob("*.json"))]


def check_device_type(folder: Path, runs: Sequence[Measured], device: str) -> None:
    """Refuse to put runs of different devices into one ledger: only those of GPUs are measurements of GPUs.

    Raises:
        ConfigError: if `runs`, which are in the folder, have another type.
    """
    for run in runs:
        if run.device_type != device:
            raise ConfigError(
                f"{folder}: {run.identity} was measured with {setting('device', run.device_type)}; runs with"
                f" {setting('device', device)} need a folder of their own"
            )
