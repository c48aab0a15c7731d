"""Rows of texts that are compared or labelled: columns of texts, or lists of them (sentence-transformers, ms-swift)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vramplan.errors import ConfigError
from vramplan.inputs.dataset.schemas import CONTENT_KEYS, Sample

LABELS = ("label", "labels", "score", "scores", "margin", "ner_tags", "tags")
"""Columns that hold no text (sentence-transformers 6.2, base/data_collator.py: valid_label_columns; transformers)."""
QUERIES = ("messages", "query", "anchor", "question")
"""The column of the text that others are compared with, wherever it stands."""


def texts_of(row: Any, where: str) -> list[Sample]:
    """The texts of one row, that which the others are compared with first.

    Raises:
        ConfigError: if there are none; names the row's keys.
    """
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: expected an object with columns of texts, found a {type(row).__name__}")
    names = [name for name in row if str(name) not in LABELS]
    names.sort(key=lambda name: name not in QUERIES)  # stable: the other columns keep their order
    texts = [text for name in names for text in _texts(row[name])]
    if not texts:
        keys = ", ".join(map(str, row)) or "nothing"
        raise ConfigError(f"{where}: no column of texts; it has {keys[:120]}")
    return texts


def labelled_text(row: Any, where: str) -> Sample:
    """All texts of a row as one: a pair of sentences, the words whose tokens have labels, a text and its context.

    Raises:
        ConfigError: if there are none; names the row's keys.
    """
    texts = texts_of(row, where)
    return Sample("\n".join(one.text for one in texts), max(one.messages for one in texts), 0)


def _texts(value: Any) -> Iterator[Sample]:
    """A text; the texts of a list; one text for a list of messages. A text has as many special tokens as a message."""
    if isinstance(value, str):
        yield Sample(value, 1, 0)
    elif isinstance(value, list):
        if value and all(isinstance(item, Mapping) for item in value):
            contents = [str(item[key]) for item in value for key in CONTENT_KEYS if item.get(key) is not None]
            yield Sample("\n".join(contents), len(value), 0)
        else:
            for item in value:
                yield from _texts(item)


def query_with_longest(tokens: Sequence[int]) -> int:
    """Tokens of a reranker's longest row: the query with one other text.

    >>> query_with_longest([5, 9, 7])
    14
    """
    return tokens[0] + max(tokens[1:], default=0)
