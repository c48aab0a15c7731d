"""States and temporaries of optimizers, measured with a storage tracker on torch 2.13 and transformers 5.23."""

from __future__ import annotations

from itertools import accumulate

import pytest

import vramplan
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.memory.optimizer_steps import Weight
from vramplan.memory.optimizers import ALIASES, KNOWN_UNMODELLED, OPTIMIZERS, check_optimizer, optimizer_of
from vramplan.memory.recorder import Recorder

SHAPES = ((100, 10), (50, 6), (7,))
SUM = 1307  # their elements


def run(name: str, dtype: str, first: bool) -> tuple[int, int]:
    """(peak, end) in unrounded bytes of one step on three weights."""
    record = Recorder()
    optimizer_of(name).step(record, [Weight("w", shape, dtype) for shape in SHAPES], first)
    sizes = [storage.num_bytes for storage in record.timeline().storages]
    levels = list(accumulate((sizes[e] if e >= 0 else -sizes[~e] for e in record.events), initial=0))
    return max(levels), levels[-1]


@pytest.mark.parametrize(
    ("name", "dtype", "first", "peak", "end"),
    [
        ("adamw_torch_fused", "bf16", True, 5240, 5240),  # 2 states of 2 bytes, 3 step counters of 4
        ("adamw_torch_fused", "bf16", False, 0, 0),
        ("adamw_torch", "bf16", True, 7842, 5228),  # the roots of all weights at once
        ("adamw_torch", "bf16", False, 2614, 0),
        ("adamw_torch_loop", "bf16", True, 9228, 5228),  # root and denominator of the largest
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
    """torchao 0.18 on the CPU: a state of 524,288 elements is 533,504 bytes, inductor's code keeps 8 per element."""
    record = Recorder()
    weights = [Weight("w", (1024, 512), "bf16"), Weight("b", (100,), "bf16")]
    optimizer_of("adamw_torch_8bit").step(record, weights, True)
    alive = {number for number in record.events if number >= 0} - {~number for number in record.events if number < 0}
    storages = record.timeline().storages
    assert sum(storages[number].num_bytes for number in alive) == 2 * 533_504 + 2 * 200
    temporaries = [storage.num_bytes for storage in storages if storage.category == "temporary"]
    assert sum(temporaries) == 2 * 4 * (524_288 + 2048)


def test_adafactor_keeps_rows_and_columns() -> None:
    rows_and_columns = 4 * (100 + 10 + 50 + 6 + 7)
    assert run("adafactor", "bf16", True)[1] == rows_and_columns + 3 * 4


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_muon_allocates_what_torch_does(dtype: str) -> None:
    """Two real steps on the CPU: storages of more than 16 bytes are allocated and freed in the same order."""
    torch = pytest.importorskip("torch", reason="the real optimizer needs the extra vramplan[probe]")
    from vramplan.torch_backend.trace.storage_tracker import StorageTracker

    shapes = [(96, 32), (8, 64), (64, 64)]
    record = Recorder()
    for first in (True, False):
        optimizer_of("muon").step(record, [Weight("w", shape, dtype) for shape in shapes], first)
    timeline = record.timeline()
    expected = [(-1 if e < 0 else 1) * timeline.storage(max(e, ~e)).num_bytes for e in record.events]

    real_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    tracker = StorageTracker()
    with tracker:
        weights = [torch.nn.Parameter(torch.zeros(shape, dtype=real_dtype)) for shape in shapes]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.Muon(weights)
        begin = len(tracker.events)
        optimizer.step()
        optimizer.step()
    events = tracker.events[begin:]
    sizes = [(-1 if event < 0 else 1) * tracker.records[max(event, ~event)].num_bytes for event in events]
    assert [size for size in sizes if abs(size) > 16] == [size for size in expected if abs(size) > 16]
    assert len(sizes) > 200


def test_muon_needs_matrices_and_a_plain_loop() -> None:
    def estimate(**settings: object) -> object:
        return vramplan.estimate("qwen2.5-0.5b", "h100", **{"optimizer": "muon", "loop": "plain", **settings})

    assert estimate(method="lora")
    for refused, message in (
        ({"method": "full"}, r"two-dimensional weights only, and input_layernorm.weight \(896\) trains too"),
        ({"method": "dora"}, r"lora_magnitude_vector.weight .*\(method=lora\)"),
        ({"method": "lora", "loop": "trainer"}, r"no `optim` name for torch.optim.Muon; .* loop=plain"),
        ({"method": "lora", "num_gpus": 2, "strategy": "zero2"}, "ZeRO flattens weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            estimate(**refused)
    with pytest.raises(UnsupportedError, match=r"strategy=fsdp: .* are not modelled; give strategy=ddp"):
        check_optimizer(Job(optimizer="muon", loop="plain", strategy="fsdp", num_gpus=2))


def test_transformers_knows_every_optimizer_that_is_not_built_from_its_class() -> None:
    pytest.importorskip("torch", reason="transformers' names need the extra vramplan[probe]")
    from transformers.training_args import OptimizerNames

    names = {member.value for member in OptimizerNames}
    for record in OPTIMIZERS.values():
        assert bool(record.torch_class) != ((record.trainer_name or record.name) in names)


def test_names() -> None:
    for name in (*OPTIMIZERS, *ALIASES):
        assert optimizer_of(name.upper())
    for record in OPTIMIZERS.values():
        assert {record.eight_bit} - {""} <= OPTIMIZERS.keys()
    with pytest.raises(UnsupportedError, match="not modelled yet"):
        optimizer_of("galore_adamw")
    with pytest.raises(UnknownNameError, match="adamw_torch_fused"):
        optimizer_of("adamw_torch_fusd")
    assert not set(KNOWN_UNMODELLED) & set(OPTIMIZERS)
