"""The frame of a page, which the report and the site fill."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.visible import visible

FOLDER = Path(__file__).parent
STYLES = ("style.css", "page.css")


def source(name: str) -> str:
    """The text of a style or script of this folder."""
    return (FOLDER / name).read_text(encoding="utf-8")


def as_json(data: Any) -> str:
    """Data for a script element: no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return re.sub("[<>&\u2028\u2029]", lambda mark: f"\\u{ord(mark[0]):04x}", text)


def frame(title: str, policy: str, scripts: Sequence[str], controls: str = "") -> str:
    """A whole page; `scripts` are HTML elements, `policy` says where its parts may come from."""
    inserts = {
        "@TITLE@": html.escape(visible(title)),
        "@POLICY@": html.escape(policy),
        "@STYLE@": "".join(map(source, STYLES)),
        "@CONTROLS@": controls,
        "@SCRIPTS@": "\n".join(scripts),
    }
    once = re.compile("|".join(inserts))  # what is inserted is not searched again
    return once.sub(lambda mark: inserts[mark[0]], source("page.html"))
