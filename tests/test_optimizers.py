"""What optimizers hold, measured with a storage tracker on torch 2.13 and transformers 5.23."""

from __future__ import annotations

from itertools import accumulate

import pytest

from vramplan.analytic.autograd.recorder import Recorder
from vramplan.analytic.optimizers import ALIASES, KNOWN_UNMODELLED, OPTIMIZERS, Weight, optimizer_of
from vramplan.errors import UnknownNameError, UnsupportedError

SHAPES = ((100, 10), (50, 6), (7,))
SUM = 1307  # their elements


def run(name: str, dtype: str, first: bool) -> tuple[int, int]:
    """(peak, end) in unrounded bytes of one step on three weights."""
    record = Recorder()
    optimizer_of(name).step(record, [Weight("w", shape, dtype) for shape in SHAPES], first)
    sizes = [storage.num_bytes for storage in record.storages]
    levels = list(accumulate((sizes[e] if e >= 0 else -sizes[~e] for e in record.events), initial=0))
    return max(levels), levels[-1]


@pytest.mark.parametrize(
    ("name", "dtype", "first", "peak", "end"),
    [
        ("adamw_torch_fused", "bf16", True, 5240, 5240),  # 2 states of 2 bytes, 3 step counters of 4
        ("adamw_torch_fused", "bf16", False, 0, 0),
        ("adamw_torch", "bf16", True, 7842, 5228),  # the roots of all weights at once
        ("adamw_torch", "bf16", False, 2614, 0),
        ("adamw_torch_loop", "bf16", True, 9228, 5228),  # root and quotient of the largest
        ("sgd", "fp32", True, 0, 0),
        ("sgd_momentum", "fp32", True, SUM * 4, SUM * 4),
        ("sgd_momentum", "fp32", False, 0, 0),
        ("lion_32bit", "bf16", True, SUM * 4, SUM * 4),
        ("adafactor", "bf16", False, 16000, 0),  # 16 bytes for each element of the largest
        ("adafactor", "fp32", False, 8000, 0),
    ],
)
def test_one_step(name: str, dtype: str, first: bool, peak: int, end: int) -> None:
    assert run(name, dtype, first) == (peak, end)


def test_torchao() -> None:
    """torchao 0.18 on the CPU: a state of 524,288 elements is 533,504 bytes, and inductor's code keeps 8 a element."""
    record = Recorder()
    weights = [Weight("w", (1024, 512), "bf16"), Weight("b", (100,), "bf16")]
    optimizer_of("adamw_torch_8bit").step(record, weights, True)
    kept = {number for number in record.events if number >= 0} - {~number for number in record.events if number < 0}
    assert sum(record.storages[number].num_bytes for number in kept) == 2 * 533_504 + 2 * 200
    passing = [one.num_bytes for one in record.storages if one.category == "temporary"]
    assert sum(passing) == 2 * 4 * (524_288 + 2048)


def test_adafactor_keeps_rows_and_columns() -> None:
    rows_and_columns = 4 * (100 + 10 + 50 + 6 + 7)
    assert run("adafactor", "bf16", True)[1] == rows_and_columns + 3 * 4


def test_names() -> None:
    for name in (*OPTIMIZERS, *ALIASES):
        assert optimizer_of(name.upper())
    with pytest.raises(UnsupportedError, match="not modelled yet"):
        optimizer_of("galore_adamw")
    with pytest.raises(UnknownNameError, match="adamw_torch_fused"):
        optimizer_of("adamw_torch_fusd")
    assert not set(KNOWN_UNMODELLED) & set(OPTIMIZERS)
