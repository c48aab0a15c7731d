"""Options of the command line in the words of Python, for notebooks: what a text calls --seq-len is seq_len."""

from __future__ import annotations

import re

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?![\w-])")
_OUTSIDE_TAGS = re.compile(r"(?<=>)[^<>]+(?=<)")


def in_python(text: str) -> str:
    """A text whose options are named as keyword arguments, which Python takes by the same names.

    >>> in_python("--lora-dtype bf16 gives both the same; --per_device_train_batch_size is the framework's")
    "lora_dtype bf16 gives both the same; --per_device_train_batch_size is the framework's"
    """
    return _OPTION.sub(lambda option: option[1].replace("-", "_"), text)


def html_in_python(html: str) -> str:
    """The same of a fragment of HTML, without its tags."""
    return _OUTSIDE_TAGS.sub(lambda text: in_python(text[0]), html)


__all__ = ["html_in_python", "in_python"]
