"""Sizes as PyTorch prints them, with what their rounding leaves open."""

from __future__ import annotations

import re

from vramplan.dataclass import dataclass
from vramplan.units import GiB, KiB, MiB

_UNITS = {"bytes": 1, "B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "KB": KiB, "MB": MiB, "GB": GiB}
"""Bytes of a unit. MPS wrote KB, MB and GB for powers of 1024 before PyTorch took one function for all devices."""
PATTERN = r"\d{1,20}(?:\.\d{1,4})? (?:bytes|[KMG]iB|[KMG]B|B)\b"
"""Text of a size. c10/cuda/CUDACachingAllocator.cpp (format_size): whole bytes up to 1,024 of them, then two decimals
of the largest unit of which there is more than one."""
_NOT_AVAILABLE = 1 << 64
"""NVML's "not available" is 2**64 - 1 (nvml.h, NVML_VALUE_NOT_AVAILABLE), which is printed as 17179869184.00 GiB: a
process's memory on Windows and WSL. cudaMallocAsync prints the same where no limit is set."""
_AMOUNT = re.compile(r"(\d{1,20})(?:\.(\d{1,4}))? (\w+)")


@dataclass(frozen=True, slots=True)
class Amount:
    """A size that was read from a text."""

    num_bytes: int
    """The size in bytes, rounded as the text is."""
    half_width: int = 0
    """Bytes by which the true size may be larger or smaller; 0 if the text is exact."""

    @property
    def low(self) -> int:
        """Fewest bytes that the text allows."""
        return max(0, self.num_bytes - self.half_width)

    @property
    def high(self) -> int:
        """Most bytes that the text allows."""
        return self.num_bytes + self.half_width

    def allows(self, num_bytes: int) -> bool:
        """Whether the text can stand for this many bytes."""
        return self.low <= num_bytes <= self.high

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.num_bytes + other.num_bytes, self.half_width + other.half_width)

    def __sub__(self, other: Amount) -> Amount:
        """The difference, which two rounded texts can put slightly below 0."""
        return Amount(self.num_bytes - other.num_bytes, self.half_width + other.half_width)


def parse_amount(text: str) -> Amount | None:
    """A size; None if it stands for "not available".

    >>> parse_amount("20.00 MiB"), parse_amount("512 bytes"), parse_amount("17179869184.00 GiB")
    (Amount(num_bytes=20971520, half_width=5243), Amount(num_bytes=512, half_width=0), None)
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    whole, decimals, unit = match[1], match[2] or "", _UNITS[match[3]]
    scale = int(10 ** len(decimals))
    num_bytes = round(int(whole + decimals) * unit / scale) if scale > 1 else int(whole) * unit
    if num_bytes >= _NOT_AVAILABLE - GiB:
        return None
    return Amount(num_bytes, 0 if unit == 1 else -(-unit // (2 * scale)))
