"""What is proposed where completions do not fit: fewer of them generated at a time."""

from __future__ import annotations

from typing import Any

from vramplan import estimate, suggest

JOB: dict[str, Any] = {
    "task": "grpo", "method": "lora", "sequence_length": 1024, "prompt_length": 256, "generate_with": "transformers",
}  # fmt: skip


def test_fewer_completions_at_a_time() -> None:
    found = suggest("Qwen/Qwen2.5-0.5B-Instruct", "rtx3060-12gb", 1024, **JOB)
    assert found.recommended is None
    (effect,) = (one for one in found.advice if "steps_per_generation" in one.update)
    assert (effect.change, effect.fits, effect.update) == (
        "--steps-per-generation 8",
        True,
        {"steps_per_generation": 8},
    )
    changed = estimate(
        "Qwen/Qwen2.5-0.5B-Instruct",
        "rtx3060-12gb",
        micro_batch_size=effect.micro_batch_size,
        gradient_accumulation_steps=1024 // effect.micro_batch_size,
        **JOB,
        **effect.update,
    )
    assert changed.device_total_bytes == effect.device_total_bytes


def test_not_where_as_few_are_generated() -> None:
    found = suggest("Qwen/Qwen2.5-7B-Instruct", "rtx3060-12gb", 64, **JOB, steps_per_generation=8)
    assert not any("steps_per_generation" in one.update for one in found.advice)
