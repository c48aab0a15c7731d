"""From a message's text to its figures."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

from vramplan.training_log.amount import PATTERN, Amount, parse_amount
from vramplan.training_log.message_forms import FORMS, MARKERS, MessageForm, compile_template
from vramplan.training_log.record import Figures, ProcessMemory

MOST_CHARACTERS = 20_000
"""Of one message: with 100 processes it has 6,000."""
_ANY_MARKER = re.compile("|".join(map(re.escape, MARKERS)))
_SPACES = re.compile(r"\s+")
_MARKERS = {marker: _SPACES.sub(" ", marker) for marker in MARKERS}
"""Markers as they are in a text with single spaces."""
_ANY_OF_WORDS = re.compile("|".join(map(re.escape, _MARKERS.values())))
_PROCESS = re.compile(rf"(?:this process|Process (\d{{1,10}})) has ({PATTERN})")
MENTIONED = frozenset(
    form.template for form in FORMS if form.template.endswith("out of memory") or form.template == "Killed"
)
"""Messages that people and programs also write about."""
_SHELL = re.compile(r"line \d{1,9}: {1,4}\d{1,10} {1,4}$")
"""What bash writes before: ``./train.sh: line 12: 22133 Killed   python train.py``."""
_BEFORE = re.compile(r"(?:(?:Error|Exception)\W{1,4}|what\(\): {1,4}|[Cc]aught \w{0,20}:? ?)$")
_AFTER = re.compile(r"\W{0,3}$|[.'\"]{0,2}\s*(?:CUDA|HIP|Search for|Compile with|Tried|GPU|Exception raised)")
"""What follows: the end, or torch's own next words."""
_WARNING = re.compile(
    r"memory (?:allocation|mapping) failed with OOM on device (\d{1,4}) "
    r"while trying to (allocate|map) (\d{1,20}) bytes \(free: (\d{1,20}), total: (\d{1,20})\)"
)


def has_message(text: str) -> bool:
    """Whether a line may hold a message."""
    return _ANY_MARKER.search(text) is not None


def parse_message(text: str) -> tuple[MessageForm, int | None, Figures] | None:
    """A message's form, the GPU's index and the figures; None if there is no message in the text.

    Args:
        text: the message, as much of it as there is, on one line or several.
    """
    text = " ".join(text[:MOST_CHARACTERS].split())
    marker = _ANY_OF_WORDS.search(text)
    if marker is None:
        return None
    forms = [form for form in FORMS if _MARKERS[form.marker] in text[marker.start() :]]
    matches = [(form, _fit(form, text, marker.start())) for form in forms]
    form, match = max(matches, key=lambda pair: pair[1].end() if pair[1] else -1)
    if match is None or (form.template in MENTIONED and not _is_raised(text, match)):
        return None
    return (form, *_figures(match))


def _is_raised(text: str, match: re.Match[str]) -> bool:
    """Whether a message without figures is one, and not a sentence about it: "if you see CUDA out of memory, ..."."""
    if match[0] == "Killed":
        return _SHELL.search(text, 0, match.start()) is not None
    is_whole = _AFTER.match(text, match.end()) is not None
    return is_whole and (not text[: match.start()].strip() or _BEFORE.search(text, 0, match.start()) is not None)


@cache
def _pattern(form: MessageForm) -> re.Pattern[str]:
    return compile_template(form.template)


def _fit(form: MessageForm, text: str, start: int) -> re.Match[str] | None:
    first_words = form.template.split("{")[0].split("[")[0]
    at = text.find(first_words, start)
    return None if at < 0 else _pattern(form).match(text, at)


def _figures(match: re.Match[str]) -> tuple[int | None, Figures]:
    texts = match.groupdict()
    gpu = texts.pop("gpu", None)
    processes = _processes(texts.pop("processes", None) or "")
    amounts: dict[str, Any] = {name: parse_amount(text) for name, text in texts.items() if text is not None}
    allocated, unallocated = amounts.get("allocated"), amounts.get("unallocated")
    private = amounts.get("free_in_private_pools")
    if allocated is not None and unallocated is not None:  # newer messages: as printed, with the private pools
        amounts["reserved"] = allocated + unallocated
    elif allocated is not None and amounts.get("reserved") is not None:
        amounts["unallocated"] = amounts["reserved"] - allocated
    if allocated is not None and private is not None:
        amounts["allocated"] = allocated - private
    return (None if gpu is None else int(gpu)), Figures(processes=processes, **amounts)


def _processes(text: str) -> tuple[ProcessMemory, ...]:
    return tuple(
        ProcessMemory(None if match[1] is None else int(match[1]), parse_amount(match[2]))
        for match in _PROCESS.finditer(text)
    )


def parse_warning(text: str) -> tuple[int, Figures] | None:
    """The GPU's index and exact sizes of the warning that PyTorch 2.13 writes before the message; None without one.

    Source: c10/cuda/CUDACachingAllocator.cpp, alloc_block and the mapping of expandable segments. A mapping's size is
    a page of 20 MiB, not what was requested.
    """
    match = _WARNING.search(text)
    if match is None:
        return None
    gpu, verb, requested, free, total = match.groups()
    size = Amount(int(requested)) if verb == "allocate" else None
    return int(gpu), Figures(requested=size, free=Amount(int(free)), capacity=Amount(int(total)))


def sharpen(figures: Figures, exact: Figures) -> Figures:
    """The figures, where possible those of a warning that fits them."""
    fitting: dict[str, Any] = {}
    for name in ("requested", "free", "capacity"):
        rounded, precise = getattr(figures, name), getattr(exact, name)
        if rounded is not None and precise is not None and rounded.allows(precise.num_bytes):
            fitting[name] = precise
    if "capacity" not in fitting:  # of another run or GPU
        return figures
    return replace(figures, **fitting)
