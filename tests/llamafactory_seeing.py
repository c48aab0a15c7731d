"""LLaMA-Factory's trainers of vision-language models on fake tensors, in tests/trl_seeing_runs.jsonl.

`python -m tests.llamafactory_seeing FOLDER` runs those that the file lacks. Needs what
`tests.llamafactory_runs` needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from tests.helpers import card_of
from tests.llamafactory_runs import VERSION
from tests.llamafactory_trace import Custom, LlamaFactoryRun, load
from tests.recorded_runs import add_missing, job_of, model_of
from tests.trl_runs import GPU
from tests.trl_seeing_runs import FROZEN, RUNS, WHOLE, case
from tests.trl_seeing_trace import Images, Seeing
from tests.trl_trace import Setup

LOSSES = {"dpo": "log_softmax", "kto": "log_softmax"}
OF_EACH: tuple[dict[str, Any], ...] = ({"task": "dpo"}, {"task": "dpo", **FROZEN})
OF_ONE: tuple[dict[str, Any], ...] = (
    {"task": "dpo", **WHOLE, "reference": "none"},
    {"task": "dpo", "checkpointing": "none", "batches": "padded"},
    {"task": "dpo", "vision": "lora", "gradient_accumulation_steps": 4},
)


class SeeingCustom(Images, Custom):
    """Batches of PairwiseDataCollatorWithPadding and KTODataCollatorWithPadding (data/collator.py)."""

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch."""
        texts = super().batch()
        rows = next(one.shape[0] for one in texts.values() if one.dim() > 1)
        seen = self.rows(rows)
        if self.job.task == "kto":
            shape = seen["input_ids"].shape
            seen |= {f"kl_{name}": one.clone() for name, one in seen.items() if one.shape == shape}
        return {**texts, **seen}


class SeeingLlamaFactoryRun(Seeing, LlamaFactoryRun):
    """One tracked run of a trainer of LLaMA-Factory whose batches have images."""

    setups: ClassVar[dict[str, type[Setup]]] = dict.fromkeys(LOSSES, SeeingCustom)


def cases() -> Iterator[dict[str, Any]]:
    """All runs."""
    for family, more in (("qwen2_vl", ()), ("qwen2_5_vl", OF_ONE), ("llava", ({"task": "kto"},))):
        for job in (*OF_EACH, *more):
            yield {**case(family, job, LOSSES[job["task"]]), "trl": VERSION}


def main() -> int:
    """Run what the file lacks."""

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        options = {"pref_loss": "orpo"} if job.reference == "none" else {}
        return SeeingLlamaFactoryRun(model_of(row), job, card_of(GPU), str(job.task), **options).go()

    Custom.classes = load(Path(sys.argv[1]) / "llamafactory")
    add_missing(RUNS, cases(), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
