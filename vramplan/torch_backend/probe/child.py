"""The process that runs a probe: it reads a request from standard input and writes lines of JSON.

    {"event": "progress", "what": ..., "share": ...}
    {"event": "result", "measured": {...}, "history": [...]}
    {"event": "error", "kind": "ConfigError", "line": "..."}

The line of an error keeps its settings unspelled (:func:`vramplan.errors.setting`). The parent keeps standard input
open; when that ends, so does this process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from vramplan.errors import VramplanError
from vramplan.memory.measurement import Request


def main() -> None:
    """Run one request."""
    send = _event_writer()
    request = Request.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if request.settings:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", request.settings)
    try:
        send({"event": "progress", "what": "loading torch, transformers and peft", "share": 0.02})
        from vramplan.torch_backend import versions

        versions()
        from vramplan.torch_backend.probe import run

        measured, history = run.run(
            request, lambda what, share: send({"event": "progress", "what": what, "share": share})
        )
    except VramplanError as error:
        send({"event": "error", "kind": type(error).__name__, "line": error.text})
        return
    send({"event": "result", "measured": measured.model_dump(mode="json"), "history": history})


def _event_writer() -> Callable[[dict[str, Any]], None]:
    """Writes events to standard output; what libraries print goes to standard error from now on."""
    stdout: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(event: dict[str, Any]) -> None:
        stdout.write(json.dumps(event) + "\n")
        stdout.flush()

    return send


def _die_with_parent() -> None:
    """Exit when standard input ends, as it does however the parent ends."""
    sys.stdin.read()
    os._exit(3)


if __name__ == "__main__":
    main()
