"""The process that runs a probe: a request comes in on standard input, lines of JSON go out.

    {"event": "progress", "what": ..., "share": ...}
    {"event": "result", "measured": {...}, "history": [...]}
    {"event": "error", "kind": "ConfigError", "line": "..."}

The parent keeps standard input open; when it ends, so does this process, wherever it is.
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
    say = _speaker()
    request = Request.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if request.settings:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", request.settings)
    try:
        say({"event": "progress", "what": "loading torch, transformers and peft", "share": 0.02})
        from vramplan.torch_backend import versions

        versions()
        from vramplan.torch_backend.probe import run

        measured, history = run.run(
            request, lambda what, share: say({"event": "progress", "what": what, "share": share})
        )
    except VramplanError as error:
        say({"event": "error", "kind": type(error).__name__, "line": str(error)})
        return
    say({"event": "result", "measured": measured.model_dump(mode="json"), "history": history})


def _speaker() -> Callable[[dict[str, Any]], None]:
    """Standard output is ours alone; whatever a library prints goes to standard error."""
    own: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(event: dict[str, Any]) -> None:
        own.write(json.dumps(event) + "\n")
        own.flush()

    return say


def _die_with_parent() -> None:
    """Standard input ends when the parent does, however it ends."""
    sys.stdin.read()
    os._exit(3)


if __name__ == "__main__":
    main()
