"""Silence."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries keep their warnings to themselves: they speak of weights that nobody loads.

    torch logs a traceback of each operation that fails on fake tensors, besides raising it. What a model prints goes to
    standard error: standard output is the answer's.
    """
    import transformers.utils.logging  # noqa: F401  (sets its own level when first loaded)

    loggers = [logging.getLogger(name) for name in ("transformers", "torch", "accelerate", "peft")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
