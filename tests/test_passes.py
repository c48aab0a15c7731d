"""The compiled passes say what those in Python say, event by event, and fail where they fail."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import sys
from array import array
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from itertools import product
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

import pytest

import hatch_build
import vramplan.memory
from tests import passes_cases
from tests.helpers import ROOT, cli_process
from vramplan.memory import passes
from vramplan.memory.allocator import UNLIMITED, AllocatorSettings
from vramplan.memory.replay import Replay, replay
from vramplan.units import MiB

PURE = os.environ.get("VRAMPLAN_PURE_PYTHON", "0") not in ("", "0")
needs_library = pytest.mark.skipif(passes.compiled is None, reason=f"nothing to compare: {passes.describe()}")
DEFAULTS = AllocatorSettings()


def outcome(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """The result, or the type of the exception."""
    try:
        return function(*arguments, **settings)
    except (ValueError, TypeError, OverflowError) as error:
        return type(error)


def in_python(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """The outcome without the library."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "compiled", None)
        return outcome(function, *arguments, **settings)


def compare(case: passes_cases.Events, capacity: int, settings: AllocatorSettings) -> Replay:
    """The replay, which is the referee's with levels and without."""
    run, without_levels = (
        replay(*case[:3], capacity, settings, streams=case.streams, levels=levels) for levels in (True, False)
    )
    referee = case.replayed(capacity, settings)
    different = next(
        (i for i, pair in enumerate(zip(run.allocated, referee.allocated, strict=False)) if len({*pair}) > 1), None
    )
    assert different is None, f"event {different}"
    assert run == referee
    assert (without_levels.allocated, without_levels.peak_reserved_bytes) == (array("q"), run.peak_reserved_bytes)
    assert without_levels.peak_allocated_bytes == run.peak_allocated_bytes
    return run


def compare_passes(case: passes_cases.Events, choose: random.Random) -> None:
    for name, arguments in passes_cases.pass_arguments(choose, case):
        function = getattr(passes, name)
        assert outcome(function, *arguments) == in_python(function, *arguments), name


@pytest.mark.skipif(PURE, reason="VRAMPLAN_PURE_PYTHON is set")
def test_the_library_is_built_where_it_can_be(tmp_path: Path) -> None:
    try:
        hatch_build.build(tmp_path)
    except hatch_build.NotCompiled as reason:
        pytest.skip(str(reason))
    assert passes.compiled is not None, f"{passes.describe()}: python hatch_build.py"
    assert hatch_build.source_digest() == passes.compiled.SOURCE, "_passes.c has changed: python hatch_build.py"


@needs_library
@pytest.mark.one_of(4)
@pytest.mark.parametrize("block", range(20))
def test_random_timelines(block: int) -> None:
    """1,000 of them in all, each at seven capacities."""
    runs = []
    for seed in range(50 * block, 50 * block + 50):
        choose = random.Random(seed)
        case, settings = passes_cases.random_events(choose), passes_cases.random_settings(choose)
        whole = case.replayed(UNLIMITED, settings)
        runs += [compare(case, capacity, settings) for capacity in passes_cases.capacities(choose, whole)]
        compare_passes(case, choose)
    assert sum(run.num_retries > 0 for run in runs) > 100
    assert sum(run.out_of_memory for run in runs) > 50
    assert sum(not run.out_of_memory for run in runs) > 50


@needs_library
@pytest.mark.one_of(10)
@pytest.mark.parametrize(("model", "job"), passes_cases.real_cases(), ids=str)
def test_real_timelines(model: str, job: dict[str, Any]) -> None:
    case = passes_cases.real_events(model, job)
    if case is None:
        pytest.skip("the model does not go with this job")
    choose = random.Random(model)
    for settings in (DEFAULTS, AllocatorSettings(expandable_segments=True), passes_cases.random_settings(choose)):
        whole = compare(case, UNLIMITED, settings)
        low, high = whole.peak_allocated_bytes, whole.peak_reserved_bytes
        for capacity in (high - 1, (low + high) // 2, choose.randrange(low // 2, high)):
            compare(case, capacity, settings)
    compare_passes(case, choose)


@needs_library
@pytest.mark.one_of(5)
@pytest.mark.parametrize("block", range(20))
def test_malformed_arguments(block: int) -> None:
    """Both refuse the same, and neither crashes."""
    refused = served = 0
    for seed in range(500 * block, 500 * block + 500):
        choose = random.Random(seed)
        case, settings = passes_cases.malformed_events(choose), passes_cases.random_settings(choose)
        capacity = choose.choice((UNLIMITED, 1 << 70, -(1 << 70), 0, -5, 30 * MiB, 100 * MiB))
        arguments = (*case[:3], capacity, settings, False, case.streams)
        run = outcome(replay, *arguments)
        assert run == in_python(replay, *arguments)
        refused += isinstance(run, type)
        served += isinstance(run, Replay)
        compare_passes(case, choose)
    assert min(refused, served) > 50


@needs_library
def test_the_library_checks_whatever_it_is_given() -> None:
    """Straight into the library, past what the functions around it check and convert."""
    ints, longs = array("i", [0, ~0]).tobytes(), array("q", [512, 512]).tobytes()
    values = (
        ints,
        longs,
        ints[:4],
        longs[:8],
        b"",
        b"abc",
        b"\xff" * 16,
        0,
        1,
        -1,
        1 << 62,
        1 << 80,
        None,
        "text",
        1.5,
        [1],
    )
    choose = random.Random(0)
    refused = 0
    for _ in range(20_000):
        name = choose.choice(list(PARAMETERS))
        arguments = [choose.choice(values) for _ in range(PARAMETERS[name] + (choose.random() < 0.02))]
        result = outcome(getattr(passes.compiled, name), *arguments)
        refused += isinstance(result, type)
    assert 10_000 < refused < 20_000


PARAMETERS = {
    "replay": 10,
    "live_bytes": 3,
    "peak_bytes": 3,
    "live_by_group": 6,
    "live_at": 1,
    "index_of_highest": 1,
    "shifted": 2,
    "relocated": 3,
    "selected": 2,
    "renumbered": 3,
}
"""How many each function of the library has."""


def test_every_function_of_the_library_is_covered() -> None:
    if passes.compiled is not None:
        functions = {name for name, value in vars(passes.compiled).items() if isinstance(value, BuiltinFunctionType)}
        assert functions == {*PARAMETERS}


@pytest.mark.parametrize(
    ("events", "kinds", "sizes", "message"),
    [
        ([0, 0], [0], [512], "event 1 allocates"),
        ([0, ~0, ~0], [0], [512], "event 2 frees"),
        ([1], [0], [512], "event 0 names"),
        ([~7], [0], [512], "event 0 names"),
        ([0], [1], [512], "kind"),
        ([0], [-1], [512], "kind"),
        ([0], [0], [-1], "size"),
        ([0], [0], [(1 << 60) + 1], "64-bit"),
        ([0], [0], [1 << 70], "64-bit"),
        ([1 << 40], [0], [512], "more bits"),
    ],
)
def test_what_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, events: list[int], kinds: list[int], sizes: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replay(events, kinds, sizes)
    monkeypatch.setattr(passes, "compiled", None)
    with pytest.raises(ValueError, match=message):
        replay(events, kinds, sizes)


def test_kinds_share_sizes_and_streams() -> None:
    events = [0, ~0, 1, 2]
    by_kind = replay(events, [0, 1, 0], [60 * MiB, 80 * MiB], streams=[0, 3])
    by_storage = replay(events, None, [60 * MiB, 80 * MiB, 60 * MiB], streams=[0, 3, 0])
    assert by_kind == by_storage
    assert by_kind.peak_reserved_bytes == 140 * MiB
    with pytest.raises(ValueError, match="stream"):
        replay(events, [0, 1, 0], [60 * MiB, 80 * MiB], streams=[0])


@needs_library
@pytest.mark.parametrize("gaps", list(product((1, 2, 3), repeat=3)))
def test_the_block_that_can_grow_least_is_taken(gaps: tuple[int, int, int]) -> None:
    """Of three free blocks of a page, each before a gap of so many pages that were released."""
    page = 20 * MiB
    sizes = array("q", [page, *(page * gap for gap in gaps), 5 * page, 45 * MiB])
    storages = array("i", [0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 5])
    events = [*range(7), ~1, ~3, ~5, 7, ~0, ~2, ~4]  # for 7, the pages of 1, 3 and 5 are released
    events += [8, 9, 10]  # 8 takes one of the blocks; 9 and 10 grow others
    case = passes_cases.Events(array("i", events), storages, sizes, None)
    for pages in range(4 + sum(gaps), 20):
        compare(case, pages * page, AllocatorSettings(expandable_segments=True))


def test_passes_by_hand() -> None:
    events, kinds, sizes = [0, 1, ~0, 2, ~2, ~1], [0, 1, 0], [5, 70]
    assert list(passes.live_bytes(events, kinds, sizes)) == [5, 75, 70, 75, 70, 0]
    assert passes.peak_bytes(events, kinds, sizes) == 75
    assert passes.peak_bytes([], [], []) == 0
    assert list(map(list, passes.live_by_group(events, kinds, sizes, [1, 0], 3, [1, 2, 2]))) == [
        [70] * 3,
        [5, 0, 0],
        [0] * 3,
    ]
    assert [list(passes.live_at(events, index)) for index in (-1, 1, 3, 5)] == [[], [0, 1], [1, 2], []]
    assert list(passes.live_at([0, 1, ~0, 0], 3)) == [1, 0]  # the last allocation counts
    assert passes.index_of_highest([1, 7, 3, 7], 0, 4) == 1
    assert passes.highest([9, 7, 3, 8], 1, 3) == 7
    assert list(passes.shifted([0, ~2], 5)) == [5, ~7]
    assert list(passes.relocated([0, ~2, 1], [1, 0, 1], [10, 20])) == [20, ~12, 21]
    assert list(passes.selected([0, 1, ~0, 2], b"\1\0\1")) == [0, ~0, 2]
    again, storages, numbers = passes.renumbered([0, 1, ~0, ~2, 2], [7, -1, -1], 10)
    assert (list(again), list(storages), list(numbers)) == ([10, ~7, 11, ~10, 12], [0, 1, 2], [-1, 11, 12])


def test_arrays_are_not_changed() -> None:
    events, numbers = array("i", [0, ~0]), array("i", [4])
    passes.renumbered(events, numbers, 9)
    assert (events, numbers) == (array("i", [0, ~0]), array("i", [4]))
    assert passes.ints(events) is events


@pytest.fixture
def without_attribute(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The import of the library looks into sys.modules again."""
    monkeypatch.delattr(vramplan.memory, "_passes", raising=False)
    monkeypatch.delenv("VRAMPLAN_PURE_PYTHON", raising=False)
    return monkeypatch


def test_a_library_of_another_version_is_not_used(without_attribute: pytest.MonkeyPatch) -> None:
    other = ModuleType("vramplan.memory._passes")
    other.__version__ = "0.0.0"  # type: ignore[attr-defined]
    without_attribute.setitem(sys.modules, other.__name__, other)
    assert passes._load() == (None, "pure Python core, the compiled one is of version 0.0.0")


def test_without_a_library(without_attribute: pytest.MonkeyPatch) -> None:
    without_attribute.setitem(sys.modules, "vramplan.memory._passes", None)
    assert passes._load() == (None, "pure Python core, the compiled one is not installed")


@needs_library
def test_a_search_says_the_same_without_the_library() -> None:
    command = ("suggest", "qwen2.5-0.5b", "--gpu", "rtx3060", "--global-batch", "8", "--json")
    compiled, pure = cli_process(*command), cli_process(*command, VRAMPLAN_PURE_PYTHON="1")
    assert compiled.returncode == 0, compiled.stderr
    assert compiled.stdout == pure.stdout


@pytest.fixture(scope="module")
def library_short_of_memory(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ctypes.CDLL]:
    """The library with a malloc that fails when it is told to."""
    if os.name != "posix" or PURE:
        pytest.skip("needs a compiler that takes -include")
    header = ROOT / "tests" / "failing_malloc.h"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("CFLAGS", f"{os.environ.get('CFLAGS', '')} -include {header}")
        try:
            path = str(hatch_build.build(tmp_path_factory.mktemp("library")))
        except hatch_build.NotCompiled as reason:
            pytest.skip(str(reason))
    loader = ExtensionFileLoader("_passes", path)
    spec = importlib.util.spec_from_loader("_passes", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module, ctypes.CDLL(path)


def test_every_request_for_memory_may_fail(library_short_of_memory: tuple[ModuleType, ctypes.CDLL]) -> None:
    """MemoryError, nothing leaks, and the next call works."""
    library, control = library_short_of_memory
    total = 0
    for seed in range(24):
        choose = random.Random(seed)
        case = passes_cases.random_events(choose, longest=300)
        events, kinds, sizes = (values.tobytes() for values in case[:3])
        zeros, split = bytes(4 * len(case.sizes)), choose.choice((UNLIMITED, 32 * MiB))
        last, numbers = array("q", [len(case.events) - 1]).tobytes(), array("i", [-1] * len(case.kinds)).tobytes()
        for function, arguments in (
            (library.replay, (events, kinds, sizes, zeros, 300 * MiB, seed % 2, split, 20 * MiB, 0, True)),
            (library.live_by_group, (events, kinds, sizes, zeros, 1, last)),
            (library.live_at, (events,)),
            (library.shifted, (events, 1)),
            (library.relocated, (events, bytes(len(events)), bytes(8))),
            (library.selected, (events, bytes(len(case.kinds)))),
            (library.renumbered, (events, numbers, 0)),
        ):
            expected = function(*arguments)
            for requests in range(10_000):
                control.fail_after(requests)
                try:
                    result = function(*arguments)
                except MemoryError:
                    assert control.not_freed() == 0
                    continue
                total += requests
                break
            control.fail_after(-1)
            assert result == expected
            assert control.not_freed() == 0
    assert total > 1000


@pytest.mark.skipif(os.name != "posix" or PURE, reason="CC names no compiler there")
def test_without_a_compiler_there_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The build goes on, with one line that says so."""
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    with pytest.raises(hatch_build.NotCompiled, match=r"^the C compiler is missing or fails$"):
        hatch_build.build(tmp_path)
    lines: list[str] = []
    hook = hatch_build.PassesBuildHook(str(ROOT), {}, None, None, str(tmp_path), "wheel")
    monkeypatch.setattr(type(hook), "app", type("App", (), {"display_warning": staticmethod(lines.append)}))
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    hook.finalize("standard", data, "")
    assert list(data) == ["force_include"], "the wheel is for all platforms"
    included = {*data["force_include"].values()} - {hatch_build.FOR_BROWSERS}  # that needs another compiler
    assert included == {"vramplan/model_specs/index.json"}
    assert lines == ["vramplan's core is not compiled, it runs in Python: the C compiler is missing or fails"]
