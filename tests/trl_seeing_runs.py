"""Runs of TRL's trainers of vision-language models on fake tensors, in tests/trl_seeing_runs.jsonl.

`python -m tests.trl_seeing_runs` runs those that the file lacks (needs trl 1.16) and adds the peak of live tensors in
each phase, in bytes; `python -m tests.trl_seeing_runs FOLDER/trl-1.9.0` takes the package of an older version.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers import card_of
from tests.matrix_cases import SEEING, seeing_job, spec_for
from tests.recorded_runs import add_missing, job_of, model_of, rows_of
from tests.trl_runs import GPU, TRL
from vramplan.inputs.images import processed_image
from vramplan.inputs.job_values import ROLLOUTS

RUNS = Path(__file__).parent / "trl_seeing_runs.jsonl"
ONE: dict[str, Any] = {"images": 1, "image_size": (500, 400), "micro_batch_size": 2}
WHOLE: dict[str, Any] = {"method": "full", "vision": "train", "projector": "train"}
FROZEN: dict[str, Any] = {"method": "full"}
TOWER: dict[str, Any] = {"vision": "lora", "projector": "lora"}
GENERATED: dict[str, Any] = {
    "num_generations": 2,
    "generate_with": "vllm_server",
    "importance_sampling": False,
    "batches": "padded",
}
"""Completions come from elsewhere, so that scoring and training are all that there is."""
BY_FAMILY: tuple[dict[str, Any], ...] = ({"task": "dpo"}, {"task": "grpo"})
"""Jobs that every family runs."""
CLOSELY = ("llava", "internvl", "gemma3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Families that run these as well."""
OF_EACH: tuple[dict[str, Any], ...] = (
    {"task": "dpo", **WHOLE},
    {"task": "dpo", **TOWER, "checkpointing": "none"},
    {"task": "kto"},
    {"task": "rloo"},
    {"task": "dpo", "images": 0, "sequence_length": 256},
)
OF_TWO: tuple[dict[str, Any], ...] = (
    {"task": "dpo", **FROZEN, "checkpointing": "none"},
    {"task": "dpo", **TOWER},
    {"task": "dpo", "autocast": "none"},
    {"task": "dpo", "images": 2, "micro_batch_size": 1},
    {"task": "dpo", "gradient_accumulation_steps": 4},
    {"task": "dpo", "batches": "padded"},
    {"task": "dpo", "batches": "padded", "attention": "flash"},
    {"task": "dpo", "attention": "eager", "checkpointing": "none"},
    {"task": "kto", **WHOLE},
    {"task": "kto", "images": 0, "sequence_length": 256, **WHOLE},
    {"task": "grpo", "reference": "adapters_off", "gradient_accumulation_steps": 4},
    {"task": "grpo", **WHOLE},
    {"task": "grpo", "images": 2, "micro_batch_size": 4, "num_generations": 4, "checkpointing": "none"},
    {"task": "rloo", "reference": "none"},
    {"task": "grpo", "images": 0, "sequence_length": 256, "prompt_length": 64},
)


def cases() -> Iterator[dict[str, Any]]:
    """All runs of TRL 1.16: the family of the model, and the job."""
    for family in SEEING:
        yield from (case(family, job) for job in BY_FAMILY if family != "mllama" or job["task"] != "grpo")
    for family in CLOSELY:
        yield from (case(family, job) for job in OF_EACH)
    for family in ("llava", "qwen2_5_vl"):
        yield from (case(family, job) for job in OF_TWO)


def case(family: str, given: dict[str, Any], loss: str = "chunked") -> dict[str, Any]:
    """A run in which each sample's images and some text are its prompt."""
    settings = {**ONE, "loss": loss, **(GENERATED if given["task"] in ROLLOUTS else {}), **given}
    if settings["images"]:
        job = seeing_job(family, **settings)
        picture = processed_image(spec_for(family), job)
        assert picture is not None
        settings |= {"sequence_length": job.sequence_length, "prompt_length": job.images * picture.all_tokens + 50}
    return {"trl": TRL, "seeing": family, "job": settings}


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


def main() -> int:
    """Run what the file lacks of this version."""
    from tests.trl_seeing_trace import run_of

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        return run_of(job.task)(model_of(row), job, card_of(GPU), str(job.task), job.prompt_length or 0).go()

    add_missing(RUNS, cases(), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
