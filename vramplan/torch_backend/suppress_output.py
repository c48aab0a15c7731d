"""Keep warnings, logs and prints of libraries away from standard output."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, libraries log and warn nothing: their warnings are about weights that are never loaded.

    torch logs a traceback of each operation that fails on fake tensors, besides raising it. What a model prints goes to
    standard error; standard output is for the answer.
    """
    import transformers.utils.logging  # noqa: F401  (sets its own level when first loaded)

    loggers = [logging.getLogger(name) for name in ("transformers", "torch", "accelerate", "peft")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(sys.stderr):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
