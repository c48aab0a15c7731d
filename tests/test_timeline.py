"""Timelines and their recorder against a plain count of what is alive, event by event, with either core."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramplan.memory import passes
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import CATEGORIES, Kinds, Mark, Storage, Timeline

STORAGES = st.builds(
    Storage,
    num_bytes=st.one_of(st.sampled_from([0, 1, 511, 512, 513]), st.integers(0, 1 << 33)),
    category=st.sampled_from(CATEGORIES),
    label=st.sampled_from(["a", "b"]),
    in_kernel=st.booleans(),
    stream=st.sampled_from([0, 0, 1]),
)
PHASES = ("loaded", "forward", "backward", "optimizer")


class History(NamedTuple):
    """What a recorder was told, and the storages of each number."""

    recorder: Recorder
    storages: list[Storage]
    events: list[int]
    marks: list[Mark]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Storages of a few kinds, allocated and freed in any order, alone, together, and spliced in as a piece."""
    kinds = draw(st.lists(STORAGES, min_size=1, max_size=5))
    recorder = Recorder()
    storages: list[Storage] = []
    events: list[int] = []
    marks: list[Mark] = []
    live: list[int] = []

    def allocate() -> None:
        storage = draw(st.sampled_from(kinds))
        assert recorder.has(storage) is any(one is storage for one in storages)
        number = recorder.allocate(storage)
        assert number == len(storages)
        storages.append(storage)
        events.append(number)
        live.append(number)

    def free() -> None:
        number = live.pop(draw(st.integers(0, len(live) - 1)))
        recorder.free(number)
        events.append(~number)

    def free_all() -> None:
        count = draw(st.integers(0, len(live)))
        recorder.free_all(number for number in live[:count])
        events.extend(~number for number in live[:count])
        del live[:count]

    def splice() -> None:
        added = [Storage(512 * size, "activation", "piece") for size in draw(st.lists(st.integers(0, 9), max_size=3))]
        first_kind = recorder.add_kinds(added)
        offset = recorder.splice(array("i", range(first_kind, first_kind + len(added))))
        assert offset == len(storages)
        piece = [*range(len(added)), *(~number for number in range(len(added) - 1))]
        recorder.extend(array("i", piece) if draw(st.booleans()) else piece, offset)
        storages.extend(added)
        events.extend(offset + event if event >= 0 else ~(offset + ~event) for event in piece)
        live.extend([offset + len(added) - 1] if added else [])

    for phase in ("loaded", *draw(st.lists(st.sampled_from(PHASES), max_size=5))):
        recorder.enter(phase)
        if not marks or marks[-1].phase != phase:
            marks.append(Mark(phase, len(events)))
        for _ in range(draw(st.integers(0, 6))):
            action = draw(st.sampled_from([allocate, allocate, splice, free, free_all] if live else [allocate, splice]))
            action()
    return History(recorder, storages, events, marks)


def alive(events: list[int]) -> Iterator[list[int]]:
    """Numbers of the storages alive after each event, in order of allocation."""
    live: list[int] = []
    for event in events:
        if event >= 0:
            live.append(event)
        else:
            live.remove(~event)
        yield list(live)


def rounded(storage: Storage, with_kernels: bool = True) -> int:
    return 0 if storage.in_kernel and not with_kernels else -(-storage.num_bytes // 512) * 512


def check(timeline: Timeline, history: History, with_kernels: bool, at: list[int]) -> None:
    """All that a timeline says of its events."""
    _, storages, events, marks = history
    after = list(alive(events))
    levels = [sum(rounded(storages[number], with_kernels) for number in live) for live in after]
    assert list(timeline.live_bytes(with_kernels)) == levels
    assert timeline.peak_bytes(with_kernels) == max(levels, default=0)
    ends = [mark.first_event for mark in marks[1:]] + [len(events)]
    peaks: dict[str, int] = {}
    for mark, end in zip(marks, ends, strict=True):
        within = levels[max(0, mark.first_event - 1) : end]
        if within:
            peaks[mark.phase] = max(*within, peaks.get(mark.phase, 0))
    assert timeline.phase_peaks(array("q", levels)) == peaks
    by_category = {
        category: [
            sum(rounded(storages[n], with_kernels) for n in after[index] if storages[n].category == category)
            for index in at
        ]
        for category in CATEGORIES
    }
    assert {name: list(sizes) for name, sizes in timeline.by_category(at, with_kernels).items()} == by_category
    for index in at:
        found = [timeline.kinds[kind] for kind in timeline.live_at(index)]
        assert [id(storage) for storage in found] == [id(storages[number]) for number in after[index]]
    tensors = [i for i, event in enumerate(events) if event >= 0 and storages[event].category != "reserved_unused"]
    if tensors:
        assert timeline.first_tensor == tensors[0]


@pytest.mark.parametrize("core", ["compiled", "pure"])
@settings(max_examples=150, deadline=None)
@given(histories(), st.booleans(), st.data())
def test_against_a_plain_count(core: str, history: History, with_kernels: bool, data: st.DataObject) -> None:
    recorded = history.recorder.timeline()
    listed = Timeline.of(history.storages, history.events, history.marks)
    at = sorted(data.draw(st.lists(st.integers(0, len(history.events) - 1), max_size=4))) if history.events else []
    with pytest.MonkeyPatch.context() as patch:
        if core == "pure":
            patch.setattr(passes, "compiled", None)
        for timeline in (recorded, listed):
            assert list(timeline.events) == history.events
            assert timeline.marks == history.marks
            assert [id(storage) for storage in timeline.storages] == [id(storage) for storage in history.storages]
            assert all(timeline.storage(number) is storage for number, storage in enumerate(history.storages))
            check(timeline, history, with_kernels, at)
        live = list(alive(history.events))[-1] if history.events else []
        assert history.recorder.live_bytes() == sum(history.storages[number].num_bytes for number in live)
    assert len(listed.kinds) == len({id(storage) for storage in history.storages})


@given(st.lists(STORAGES, max_size=6))
def test_kinds(storages: list[Storage]) -> None:
    kinds = Kinds(iter(storages))
    assert list(kinds) == storages
    assert len(kinds) == len(storages)
    assert kinds[1:] == storages[1:]
    assert list(kinds.sizes) == [rounded(storage) for storage in storages]
    assert [storage.rounded_bytes for storage in kinds] == list(kinds.sizes)
    assert kinds.in_kernel == [number for number, storage in enumerate(storages) if storage.in_kernel]
    if any(storage.stream for storage in storages):
        assert kinds.streams == [storage.stream for storage in storages]
    else:
        assert kinds.streams is None


def test_storages_of_one_object_are_of_one_kind() -> None:
    """Equal ones of another object keep a kind of their own: layers share objects."""
    one, other = Storage(5, "activation", "a"), Storage(5, "activation", "a")
    timeline = Timeline.of([one, other, one], [0, 1, 2], [])
    assert list(timeline.kind_of) == [0, 1, 0]
    assert len(timeline.kinds) == 2
    recorder = Recorder()
    assert [recorder.allocate(storage) for storage in (one, other, one)] == [0, 1, 2]
    assert recorder.timeline().kind_of == timeline.kind_of


def test_a_phase_that_goes_on_is_one_mark() -> None:
    recorder = Recorder()
    for phase in ("loaded", "loaded", "forward", "loaded"):
        recorder.enter(phase)
        recorder.allocate(Storage(1, "activation", "a"))
    assert recorder.marks == [Mark("loaded", 0), Mark("forward", 2), Mark("loaded", 3)]


@pytest.mark.parametrize("core", ["compiled", "pure"])
@pytest.mark.parametrize("events", [[0], [~0], [0, 1]])
def test_events_of_storages_that_there_are_not(core: str, events: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    if core == "pure":
        monkeypatch.setattr(passes, "compiled", None)
    timeline = Timeline.of([Storage(1, "activation", "a")][: len(events) - 1], events, [])
    with pytest.raises(ValueError, match=r"storage|kind"):
        timeline.live_bytes()
    with pytest.raises(ValueError, match=r"storage|kind"):
        timeline.peak_bytes()
