"""Units of bytes and counts, and their text for users."""

from __future__ import annotations

import re
from math import isqrt

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int64": 8, "int32": 4, "bool": 1, "uint8": 1, "int8": 1}
"""Bytes of one element by dtype."""


_AMOUNT = re.compile(r"(?<![\w.])(\d{1,9}(?:\.\d{1,3})?)([kmb])\b", re.IGNORECASE)


def in_digits(text: str, thousand: int) -> str:
    """A text with amounts such as 4k written out: lengths count 1,024 as a thousand, samples 1,000.

    What is no whole number stays as it is.

    >>> in_digits("128-4k", 1024), in_digits("1.5M", 1000), in_digits("4.0001k", 1000)
    ('128-4096', '1500000', '4.0001k')
    """

    def number(match: re.Match[str]) -> str:
        amount = float(match[1]) * thousand ** (1 + "kmb".index(match[2].lower()))
        return str(round(amount)) if amount == round(amount) else match[0]

    return _AMOUNT.sub(number, text)


_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:_\d{3})+")


def ungrouped(text: str) -> str:
    """A whole number without the marks between its thousands; any other text as it is.

    >>> ungrouped("4,096"), ungrouped("4_096"), ungrouped("300,1200")
    ('4096', '4096', '300,1200')
    """
    return text.replace(",", "").replace("_", "") if _GROUPED.fullmatch(text) else text


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural.

    >>> counted(1, "run"), counted(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer not below ``numerator / denominator``: a requirement never rounds down."""
    return -(-numerator // denominator)


def round_up(num_bytes: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is not below `num_bytes`."""
    return ceil_div(num_bytes, multiple) * multiple


def format_bytes(num_bytes: int) -> str:
    """A size as text, in the unit that leaves one to four digits before the point; never "GB".

    >>> format_bytes(19_652_256_768), format_bytes(8_519_680), format_bytes(512)
    ('18.30 GiB', '8.1 MiB', '512 B')
    """
    magnitude = abs(num_bytes)
    if magnitude >= GiB // 2:
        return f"{num_bytes / GiB:.2f} GiB"
    if magnitude >= MiB // 2:
        return f"{num_bytes / MiB:.1f} MiB"
    if magnitude >= KiB:
        return f"{num_bytes / KiB:.1f} KiB"
    return f"{num_bytes} B"


def format_count(count: int) -> str:
    """A parameter count as text.

    >>> format_count(7_615_616_512), format_count(20_185_088), format_count(999)
    ('7.616 B', '20.19 M', '999')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return str(count)


def divisors(number: int) -> list[int]:
    """All divisors, ascending.

    >>> divisors(16)
    [1, 2, 4, 8, 16]
    """
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})
