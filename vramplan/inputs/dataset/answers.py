"""Rows for trainers that compare or generate answers: a prompt with a chosen and a rejected one, or a prompt alone.

TRL takes prompt, chosen and rejected, or chosen and rejected with the prompt in both; LLaMA-Factory instruction or
conversations beside them; axolotl question or instruction, and chosen_response; ms-swift messages, whose last is the
chosen answer, and rejected_response or rejected_messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.errors import ConfigError
from vramplan.inputs.dataset.schemas import ANSWER_KEYS, CONTENT_KEYS, MESSAGE_LISTS, QUESTION_KEYS, Sample, sample

CHOSEN = ("chosen", "chosen_response", "chosen_messages", "chosen_conversations")
REJECTED = ("rejected", "rejected_response", "rejected_messages", "rejected_conversations")
ROLE_KEYS = ("role", "from")
ASSISTANTS = ("assistant", "gpt", "model")
PROBLEMS = ("problem", "input", "text")
"""Columns of a prompt where none has a usual name."""


def pair_of(row: Any, where: str) -> list[Sample]:
    """The two texts of a preference: the prompt with the chosen answer, and with the rejected one.

    Raises:
        ConfigError: if one of them is missing; names the row's keys.
    """
    row = _object(row, where)
    chosen, rejected = (
        next((row[key] for key in keys if row.get(key) is not None), None) for keys in (CHOSEN, REJECTED)
    )
    rest = {key: value for key, value in row.items() if key not in (*CHOSEN, *REJECTED, *ANSWER_KEYS)}
    name, messages = _messages(row)
    if chosen is None and rejected is not None and messages and _role(messages[-1]) in ASSISTANTS:
        chosen, rest = messages[-1], {**rest, name: messages[:-1]}
    if chosen is None or rejected is None:
        raise ConfigError(
            f"{where}: a preference has chosen and rejected, or messages and rejected_response; it has {_keys(row)}"
        )
    return [sample(_answered(rest, answer), where) for answer in (chosen, rejected)]


def pair_or_sample(row: Any, where: str) -> list[Sample]:
    """The texts of a row that is labelled as good or bad as a whole, or of a preference, which is two of those."""
    is_pair = isinstance(row, Mapping) and any(row.get(key) is not None for key in REJECTED)
    return pair_of(row, where) if is_pair else [sample(row, where)]


def prompt_of(row: Any, where: str) -> list[Sample]:
    """The prompt that a row is completed from; an answer in it is left out.

    Raises:
        ConfigError: if there is none; names the row's keys.
    """
    if isinstance(row, str):
        return [sample(row, where)]
    row = _object(row, where)
    prompt = row.get("prompt")
    if _is_conversation(prompt):
        row, name, messages = {key: row[key] for key in row if key != "prompt"}, "messages", list(prompt)
    elif isinstance(prompt, str):
        name, messages = "", []
    else:
        name, messages = _messages(row)
    while messages and _role(messages[-1]) in ASSISTANTS:
        messages = messages[:-1]
    rest = {key: value for key, value in row.items() if key not in (*ANSWER_KEYS, *MESSAGE_LISTS)}
    if messages:
        read = sample({**rest, name: messages}, where)
        return [read._replace(messages=read.messages + 1)]  # the header that the answer begins with
    key = next((key for key in (*QUESTION_KEYS, *PROBLEMS) if isinstance(row.get(key), str)), None)
    if key is None:
        raise ConfigError(f"{where}: no prompt (prompt, messages, instruction, query, question); it has {_keys(row)}")
    if key in PROBLEMS:
        rest = {"prompt": row[key], **{name: rest[name] for name in rest if name not in PROBLEMS}}
    return [sample({**rest, ANSWER_KEYS[0]: ""}, where)]


def _answered(rest: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    """A row in a shape that :func:`sample` reads, with one answer."""
    messages = list(_as_messages(answer))
    if any(_role(message) not in ASSISTANTS for message in messages):  # the prompt is in it
        return {"messages": messages, **{key: rest[key] for key in rest if key in ("tools", "images", "image")}}
    name, prompt = _messages(rest)
    if prompt:
        return {**rest, name: [*prompt, *(messages or [{"role": "assistant", "content": answer}])]}
    if any(rest.get(key) is not None for key in QUESTION_KEYS):
        return {**rest, ANSWER_KEYS[0]: messages or answer}
    return {**rest, "text": answer} if isinstance(answer, str) else {**rest, "messages": messages}


def _as_messages(answer: Any) -> Iterator[dict[str, Any]]:
    """The messages of an answer in the shape of a conversation, one or a list of them."""
    for message in answer if isinstance(answer, list) else [answer]:
        if isinstance(message, Mapping) and _role(message) is not None:
            content = next((message[key] for key in CONTENT_KEYS if message.get(key) is not None), "")
            yield {"role": _role(message), "content": content}


def _messages(row: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """(name of the list of messages, the messages); a name and nothing if a row has none."""
    found = ((name, row[name]) for name in (*MESSAGE_LISTS, "prompt") if _is_conversation(row.get(name)))
    name, messages = next(found, (MESSAGE_LISTS[0], []))
    return (MESSAGE_LISTS[0] if name == "prompt" else name), list(messages)


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(message, Mapping) for message in value)


def _role(message: Any) -> Any:
    return next((message[key] for key in ROLE_KEYS if key in message), None) if isinstance(message, Mapping) else None


def _object(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: expected an object with a sample's fields, found a {type(row).__name__}")
    return row


def _keys(row: Mapping[str, Any]) -> str:
    return (", ".join(map(str, row)) or "nothing")[:120]
