"""How many tokens a text is: by the model's own tokenizer where it lies here, else by its characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vramplan.errors import ConfigError, MissingDependencyError

INSTALL = 'pip install "vramplan[data]"'
LATIN, HAN, OTHER = 3.0, 1.5, 1.0
"""Characters a token. Qwen's documentation (Key Concepts): "1 token is 3~4 characters for English texts and 1.5~1.8
characters for Chinese texts"; the lower ends are taken, so that a length errs upward. Other scripts: no figure is
published for all of them, byte-level vocabularies spend one to three characters a token (arXiv 2305.15425)."""
HAN_OF_SMALL = 0.8
"""Of Han characters with a vocabulary of 32,000: 35 tokens for 28 characters (Llama's, arXiv 2304.08177, table 1)."""
SMALL_VOCABULARY = 40_000
A_MESSAGE = 5
"""Tokens that a template puts around a message: <|im_start|>, role, line, <|im_end|>, line (ChatML); Llama 3: too."""
_HAN = re.compile("[\u2e80-\u2fff\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003ffff]+")
_OTHER = re.compile("[\u0370-\u1dff\u3040-\u33ff\ua000-\uf8ff\uff66-\uffee\U00010000-\U0001ffff]+")


class Counter(NamedTuple):
    """Something that counts tokens."""

    source: str
    """What the counts rest on, for the reader."""
    exact: bool
    tokens_of: Callable[[Sequence[str]], list[int]]
    """Of each text."""


def by_characters(vocabulary: int | None) -> Counter:
    """Counts that err upward, for a tokenizer with so many tokens."""
    han = HAN_OF_SMALL if vocabulary is not None and vocabulary < SMALL_VOCABULARY else HAN

    def tokens(text: str) -> int:
        if text.isascii():
            return int(-(-len(text) // LATIN))
        chinese, other = (sum(map(len, pattern.findall(text))) for pattern in (_HAN, _OTHER))
        return int(-(-((len(text) - chinese - other) / LATIN + chinese / han + other / OTHER) // 1))

    said = (
        f"estimated from characters: {LATIN:g} a token, {han:g} of Chinese, {OTHER:g} of other scripts, which errs"
        " upward (in English by up to a third)"
    )
    return Counter(said, False, lambda texts: [tokens(text) for text in texts])


def by_tokenizer(file: Path) -> Counter:
    """Counts of a tokenizer.json.

    Raises:
        MissingDependencyError: without the tokenizers package.
        ConfigError: for a file that it does not take.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependencyError(f"{file}: reading a tokenizer takes the tokenizers package: {INSTALL}") from error
    try:
        made = Tokenizer.from_file(str(file))
    except Exception as error:  # whatever Rust raises
        raise ConfigError(f"{file}: is no tokenizer ({' '.join(str(error).split())[:120]})") from error
    made.no_truncation()
    made.no_padding()
    encode = getattr(made, "encode_batch_fast", made.encode_batch)  # without offsets, since 0.20
    return Counter(
        f"counted by {file}",
        True,
        lambda texts: [len(one.ids) for one in encode(list(texts), add_special_tokens=False)],
    )


def counter_for(file: Path | None, vocabulary: int | None, needed: bool = False) -> Counter:
    """The best there is: the model's tokenizer, else its characters, unless the tokenizer was asked for.

    Raises:
        MissingDependencyError: where it was, and the tokenizers package is missing.
        ConfigError: for a file that is no tokenizer.
    """
    if file is None:
        return by_characters(vocabulary)
    try:
        return by_tokenizer(file)
    except MissingDependencyError:
        if needed:
            raise
        guess = by_characters(vocabulary)
        return guess._replace(source=f"{guess.source}; {INSTALL} counts by {file}")
