"""What an estimate says that no run of the trainer's own code was compared with."""

from __future__ import annotations

import pytest

from vramplan import Job
from vramplan.analytic.not_compared import hook_of_template


@pytest.mark.parametrize(
    ("model_type", "task", "images", "said"),
    [
        ("internvl", "dpo", 1, True),
        ("glm4v", "dpo", 1, True),
        ("qwen2_vl", "dpo", 1, False),
        ("qwen3_vl", "dpo", 1, False),
        ("internvl", "dpo", 0, False),
    ],
)
def test_hooks_of_templates(model_type: str, task: str, images: int, said: bool) -> None:
    job = Job.model_construct(**Job().model_dump() | {"task": task, "loss": "logits_to_keep", "images": images})
    assert bool(hook_of_template(job, model_type)) == said
