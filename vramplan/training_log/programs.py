"""Which training framework a traceback goes through."""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.training_log.record import Frame

FOLDERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("llamafactory", ("/llamafactory/",)),
    ("axolotl", ("/axolotl/cli/", "/axolotl/train.py", "/axolotl/core/")),
    ("ms-swift", ("/swift/cli/", "/swift/llm/", "/swift/pipelines/", "/swift/trainers/", "/swift/rlhf_trainers/")),
    ("unsloth", ("/unsloth/", "/unsloth_zoo/", "/unsloth_compiled_cache/")),
    ("torchtune", ("/torchtune/",)),
    ("trl", ("/trl/",)),
    ("transformers", ("/transformers/trainer.py",)),
)
"""Framework -> folders of its files. The first that fits counts: frameworks above call the trainers of those below."""


def framework_of(frames: Iterable[Frame]) -> str:
    """The name of the framework, as `vramplan check` reads it; empty if no call is of one."""
    files = [f"/{frame.file}" for frame in frames]
    return next((name for name, folders in FOLDERS if any(part in file for file in files for part in folders)), "")
