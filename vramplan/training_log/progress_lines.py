"""Progress bars and lines of training logs."""

from __future__ import annotations

import re

from vramplan.training_log.record import Progress

_COUNT = re.compile(r" {0,4}(\d{1,9})/(\d{1,9}|\?) \[")
_LINES = (
    re.compile(r"\biteration {1,12}(\d{1,9})/ {0,12}(\d{1,9})"),  # Megatron-LM, training_log
    re.compile(r"\bstep=(\d{1,9}),()"),  # DeepSpeed, engine.py _report_progress
    re.compile(r"^(?:.{0,120} )?step: {1,8}(\d{1,9})() {1,8}loss: "),  # torchtitan, components/metrics.py
)
_EPOCH = re.compile(r"'epoch': '?(\d{1,6}(?:\.\d{1,12})?)\b")
NOT_STEPS = (
    "Loading", "Map", "Filter", "Tokenizing", "Downloading", "Fetching", "Generating", "Saving", "Packing",
    "Adding EOS", "Converting", "Truncating", "Extracting", "Applying chat template", "Processed prompts",
    "Rendering prompts", "Capturing", "Casting", "Flattening", "Running tokenizer", "Grouping texts", "Quantizing",
)  # fmt: skip
"""First words of bars of transformers, datasets, trl, LLaMA-Factory and vLLM that count no training steps."""


def parse_progress(text: str) -> Progress | None:
    """The progress that a line tells; None if it tells none of training.

    >>> parse_progress("  3%|3         | 12/400 [01:02<33:00,  5.1s/it]")
    Progress(done=12, total=400, description='')
    """
    bar = text.find("%|")
    if bar >= 0:
        return _bar(text, bar)
    if "/" in text or "step" in text:
        for pattern in _LINES:
            if (match := pattern.search(text)) is not None:
                return Progress(int(match[1]), int(match[2]) if match[2] else None)
    return None


def after_bar(text: str) -> str:
    """What stands in a bar's line behind it: tqdm ends no line, so that the next text follows at once.

    All of a line without a bar.
    """
    bar = text.find("%|")
    return text[text.find("]", bar) + 1 :] if bar >= 0 else text


def _bar(text: str, bar: int) -> Progress | None:
    """Source: tqdm/std.py (format_meter): description, percentage, bar, count, times."""
    end = text.find("|", bar + 2, bar + 2_000)
    match = _COUNT.match(text, end + 1) if end >= 0 else None
    description = text[:bar].rstrip("0123456789").rstrip(" :")[-200:].strip()
    if match is None or description.startswith(NOT_STEPS):
        return None
    return Progress(int(match[1]), int(match[2]) if match[2] != "?" else None, description)


def parse_epoch(text: str) -> float | None:
    """The epoch that Trainer's line of metrics tells; None without one.

    Source: transformers/trainer_callback.py (ProgressCallback.on_log); transformers 5 prints the numbers as text.
    """
    match = _EPOCH.search(text) if "'epoch'" in text else None
    return float(match[1]) if match else None
