"""Writing files whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from vramplan.errors import ConfigError


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path`, or where that link leads; an interruption leaves what was there before.

    Raises:
        ConfigError: where that place cannot be written.
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
