"""A replayed timeline in the format of PyTorch's memory viewer: pytorch.org/memory_viz, torch/cuda/_memory_viz.py.

Mirrors what torch.cuda.memory._snapshot returns (torch/csrc/cuda/memory_snapshot.cpp and Module.cpp). Sizes of
allocations are what was asked for, as there; whole blocks stand in ``segments``.
"""

from __future__ import annotations

import pickle
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from vramplan.atomic_write import write as write_file
from vramplan.memory.allocator import SMALL_BUFFER, AllocatorSettings
from vramplan.memory.estimate import Estimate
from vramplan.memory.replay import Replay, replay
from vramplan.memory.timeline import Storage, Timeline

BASE = 1 << 46
"""Added to all addresses: the simulation's begin at 0, CUDA's look like this. All stay below 2**53 (JavaScript)."""
PICKLE_PROTOCOL = 4
"""The newest that the viewer's own unpickler knows."""

Entry = dict[str, Any]


def write(estimate: Estimate, path: Path) -> None:
    """Write the file that the viewer opens: the estimate's timeline, replayed on its card once more.

    Raises:
        ConfigError: if `path` cannot be written.
    """
    timeline = estimate.timeline
    assert timeline is not None
    settings = AllocatorSettings(expandable_segments=estimate.job.expandable_segments)
    available = estimate.capacity_bytes - (estimate.device_total_bytes - estimate.peak_reserved_bytes)
    run = replay(
        timeline.events, timeline.kind_of, timeline.kinds.sizes, max(0, available), settings, record=True,
        streams=timeline.kinds.streams,
    )  # fmt: skip
    write_file(path, pickle.dumps(snapshot(timeline, run, settings), protocol=PICKLE_PROTOCOL))


def snapshot(timeline: Timeline, replayed: Replay, settings: AllocatorSettings | None = None) -> Entry:
    """What torch.cuda.memory._snapshot would return after the timeline, recorded from its beginning.

    `replayed` must have its history. Time is the number of the event. Every allocation carries its category, which
    colours it, and two frames, which the viewer shows as its stack: what it is, and the phase.
    """
    frames = cache(_frames)
    phases = _phases(timeline)
    trace: list[Entry] = []
    segments: dict[int, tuple[int, str]] = {}  # address: size, type
    live: dict[int, Entry] = {}  # address: block
    phase = number = 0

    for action in replayed.history:
        event = timeline.events[number]
        storage = timeline.storage(event if event >= 0 else ~event)
        while phase + 1 < len(phases) and timeline.marks[phase + 1].first_event <= number:
            phase += 1
        size, address = action.num_bytes, BASE + action.address
        entry: Entry = {"addr": address, "size": size, "stream": storage.stream, "time_us": number}
        entry["frames"] = frames(storage, phases[phase])
        if action.name == "alloc":
            entry["size"] = storage.num_bytes
            live[address] = _block(address, size, storage.num_bytes, "active_allocated", entry["frames"])
            trace.append({"action": "alloc", "category": storage.category, **entry})
            number += 1
        elif action.name == "free":
            entry["size"] = storage.num_bytes
            entry["frames"] = live.pop(address)["frames"]
            trace += [{"action": "free_requested", **entry}, {"action": "free_completed", **entry}]
            number += 1
        elif action.name == "empty_cache":
            number += 1
        elif action.name == "oom":
            entry["device_free"] = action.address
            del entry["addr"]
            trace.append({"action": "oom", **entry})
        else:  # the viewer adds `unknown` to other categories, and stumbles over a misspelling as it does
            trace.append({"action": action.name, "category": "unknown", **entry})
            _change(segments, action.name, address, size)

    expandable = settings is not None and settings.expandable_segments
    return {
        "segments": _with_blocks(segments, live, expandable),
        "device_traces": [trace],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if expandable else "",
            "expandable_segments": expandable,
        },
        "external_annotations": [
            {"device": 0, "time_us": mark.first_event, "name": name, "stage": "START"}
            for mark, name in zip(timeline.marks, phases, strict=True)
        ],
    }


def _phases(timeline: Timeline) -> list[str]:
    """Names of the marks; ``forward 2`` is the second."""
    count: Counter[str] = Counter()
    names = []
    for mark in timeline.marks:
        count[mark.phase] += 1
        names.append(f"{mark.phase} {count[mark.phase]}")
    return [name.removesuffix(" 1") if count[name[:-2]] == 1 else name for name in names]


def _frames(storage: Storage, phase: str) -> list[Entry]:
    """Innermost first; shown as ``filename:line:name``, the flame graph in reverse."""
    name = f"{storage.label}, {storage.formula}" if storage.formula else storage.label
    return [
        {"filename": storage.category, "line": 0, "name": name.replace(";", ",")},  # a flame graph splits there
        {"filename": "phase", "line": 0, "name": phase},
    ]


def _change(segments: dict[int, tuple[int, str]], name: str, address: int, size: int) -> None:
    """Apply an action on a segment; pages that are mapped side by side are one, as PyTorch's snapshot has them."""
    if name == "segment_free":
        del segments[address]
        return
    if name == "segment_unmap":
        first = max(at for at in segments if at <= address)
        mapped, kind = segments.pop(first)
        if first < address:
            segments[first] = (address - first, kind)
        if address + size < first + mapped:
            segments[address + size] = (first + mapped - address - size, kind)
        return
    if name == "segment_map":
        following, kind = segments.pop(address + size, (0, _kind(size)))
        size += following
        for first, (mapped, kind_before) in segments.items():
            if first + mapped == address:
                segments[first] = (mapped + size, kind_before)
                return
        segments[address] = (size, kind)
        return
    segments[address] = (size, _kind(size))


def _kind(size: int) -> str:
    return "small" if size == SMALL_BUFFER else "large"


def _with_blocks(segments: dict[int, tuple[int, str]], live: dict[int, Entry], expandable: bool) -> list[Entry]:
    """The segments with their blocks; the gap between two blocks in use is one free block."""
    used = [live[address] for address in sorted(live, reverse=True)]
    result = []
    for address, (size, kind) in sorted(segments.items()):
        blocks: list[Entry] = []
        at, end = address, address + size
        while at < end:
            if used and used[-1]["address"] == at:
                blocks.append(used.pop())
            else:
                upto = min(used[-1]["address"], end) if used else end
                blocks.append(_block(at, upto - at, 0, "inactive", []))
            at += blocks[-1]["size"]
        active = [block for block in blocks if block["state"] == "active_allocated"]
        allocated = sum(block["size"] for block in active)
        result.append(
            {
                "device": 0,
                "address": address,
                "total_size": size,
                "allocated_size": allocated,
                "active_size": allocated,
                "requested_size": sum(block["requested_size"] for block in active),
                "stream": 0,
                "segment_type": kind,
                "segment_pool_id": (0, 0),
                "is_expandable": expandable,
                "frames": [],
                "blocks": blocks,
            }
        )
    return result


def _block(address: int, size: int, requested: int, state: str, frames: list[Entry]) -> Entry:
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}
