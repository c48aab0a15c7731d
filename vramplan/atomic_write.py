"""Atomic writes of files."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from vramplan.errors import ConfigError


def write(path: Path, content: bytes) -> None:
    """Write `content` to `path`, through a symbolic link; if interrupted, the former file remains.

    Raises:
        ConfigError: if the path cannot be written.
    """
    try:
        path = path.resolve()
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o644
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
