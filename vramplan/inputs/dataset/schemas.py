"""Rows as training frameworks take them: what text is in one, how many messages and images.

messages and conversations (ms-swift, LLaMA-Factory's sharegpt, axolotl's chat_template, TRL), alpaca, query and
response (ms-swift), prompt and completion (TRL), text, axolotl's segments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from vramplan.errors import ConfigError, UnsupportedError

TALKS = ("messages", "conversations", "conversation")
CONTENTS = ("content", "value", "text")
"""What the text of a message is called."""
QUESTIONS = ("instruction", "query", "prompt", "question")
ANSWERS = ("output", "response", "completion", "answer")
BESIDE = ("system", "input", "tools")
"""More text beside question and answer, or beside messages."""
PICTURES = ("images", "image")
PLACEHOLDER = "<image>"
UNMODELLED = ("videos", "video", "audios", "audio")


class Sample(NamedTuple):
    """One row."""

    text: str
    messages: int
    """Turns that a chat template frames; 0 for bare text."""
    images: int


def sample(row: Any, where: str) -> Sample:
    """What is in one row.

    Raises:
        ConfigError: where there is no text in it that is known, naming what it has.
        UnsupportedError: for videos and sound.
    """
    if isinstance(row, str):
        return Sample(row, 0, 0)
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: expected an object with a sample's fields, found a {type(row).__name__}")
    for name in UNMODELLED:
        if row.get(name):
            raise UnsupportedError(f"{where}: {name} are not modelled yet")
    pieces = _Pieces(where)
    talk = next((name for name in TALKS if isinstance(row.get(name), list)), None)
    question = next((name for name in QUESTIONS if row.get(name) is not None), None)
    answer = next((name for name in ANSWERS if row.get(name) is not None), None)
    framed = True
    if talk is not None:
        pieces.talk(row[talk], talk)
    elif question is not None and answer is not None:
        for pair in row.get("history") or []:
            pieces.said(pair, "history")
        pieces.said(row[question], question)
        pieces.said(row[answer], answer)
    elif isinstance(row.get("segments"), list):
        pieces.talk(row["segments"], "segments")
    elif isinstance(row.get("text"), str):
        pieces.said(row["text"], "text")
        framed = False
    elif question is not None:
        raise ConfigError(f"{where}: has {question}, but none of {', '.join(ANSWERS)}")
    else:
        has = ", ".join(map(str, row)) or "nothing"
        raise ConfigError(
            f"{where}: no text that is known (messages, conversations, instruction and output, query and response,"
            f" prompt and completion, text); it has {has[:120]}"
        )
    for name in BESIDE if framed else ():
        if row.get(name):
            pieces.said(row[name], name, message=name == "system")
    listed = next((_count(row[name]) for name in PICTURES if row.get(name) is not None), 0)
    text = "\n".join(pieces.texts)
    return Sample(text, pieces.messages if framed else 0, max(listed, pieces.images, text.count(PLACEHOLDER)))


def _count(given: Any) -> int:
    return len(given) if isinstance(given, list) else int(bool(given))


class _Pieces:
    """Text as it is found."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.texts: list[str] = []
        self.messages = self.images = 0

    def talk(self, turns: list[Any], name: str) -> None:
        """A list of messages."""
        if not turns:
            raise ConfigError(f"{self.where}: {name} is empty")
        for number, turn in enumerate(turns):
            content = next((one for key in CONTENTS if (one := _get(turn, key)) is not None), None)
            calls = _get(turn, "tool_calls")
            if content is None and calls is None:
                raise ConfigError(f"{self.where}: {name}[{number}] has none of {', '.join(CONTENTS)}")
            for one in (content, calls):
                if one is not None:
                    self._content(one)
            self.messages += 1

    def said(self, value: Any, name: str, message: bool = True) -> None:
        """Text, messages, or data that is written out as JSON."""
        if isinstance(value, list) and value and all(isinstance(one, Mapping) and "role" in one for one in value):
            self.talk(value, name)
            return
        self._content(value)
        self.messages += message

    def _content(self, value: Any) -> None:
        if isinstance(value, str):
            self.texts.append(value)
        elif isinstance(value, list) and all(isinstance(one, Mapping) and "type" in one for one in value):
            for part in value:
                kind = str(part["type"])
                if kind.startswith("image"):
                    self.images += 1
                elif kind.startswith(("video", "audio")):
                    raise UnsupportedError(f"{self.where}: {kind} is not modelled yet")
                else:
                    self._content(part.get("text", part))
        else:
            self.texts.append(json.dumps(value, ensure_ascii=False))


def _get(turn: Any, key: str) -> Any:
    return turn.get(key) if isinstance(turn, Mapping) else None
