"""ms-swift's trainers of vision-language models on fake tensors, in tests/trl_seeing_runs.jsonl.

`python -m tests.swift_seeing` runs those that the file lacks. Needs what `tests.swift_runs` needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of
from tests.swift_runs import ROW, VERSION
from tests.swift_seeing_template import ARCHITECTURES, as_loaded, positions, register, use_template
from tests.swift_trace import Swift, SwiftRun
from tests.trl_runs import GPU
from tests.trl_seeing_runs import FROZEN, RUNS, WHOLE, case
from tests.trl_seeing_trace import Images, Seeing
from tests.trl_trace import Setup

OF_EACH: tuple[dict[str, Any], ...] = ({"task": "dpo"}, {"task": "dpo", **FROZEN})
OF_ONE: tuple[dict[str, Any], ...] = (
    {"task": "dpo", **WHOLE, "checkpointing": "none"},
    {"task": "dpo", "gradient_accumulation_steps": 4, "micro_batch_size": 1},
    {"task": "dpo", **ROW},
    {"task": "dpo", **ROW, **WHOLE, "micro_batch_size": 1},
)


class SeeingSwift(Images, Swift):
    """DPOTrainer of ms-swift, with its template's hook in front of the model if that is of one of its Qwen-VL."""

    trains = False
    """Whether its train() runs, which registers the hook itself."""
    hooked = False

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        config: Any = model.config
        if config.model_type not in ARCHITECTURES:
            return super().trainer(model, peft, folder, words, reference)
        as_loaded(model, reference)
        trainer = super().trainer(model, peft, folder, words, reference)
        self.hooked = True
        template = use_template(trainer, config.model_type, words)
        if not self.trains:
            register(trainer, template, self.job.checkpointing == "full")
        return trainer

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch."""
        rows = self.rows(2 * self.job.micro_batch_size)
        if self.job.joins_samples:
            rows["input_ids"] = rows["input_ids"].view(1, -1)
            del rows["attention_mask"]
        batch = {**super().batch(), **rows}
        return batch | (positions(batch["input_ids"].shape) if self.hooked else {})


class SeeingSwiftRun(Seeing, SwiftRun):
    """One tracked run of a trainer of ms-swift whose batches have images."""

    setups: ClassVar[dict[str, type[Setup]]] = {"dpo": SeeingSwift}


def cases() -> Iterator[dict[str, Any]]:
    """All runs."""
    for family, more in (("qwen2_5_vl", OF_ONE), ("llava", ()), ("internvl", ())):
        for job in (*OF_EACH, *more):
            yield {**case(family, job, "logits_to_keep"), "trl": VERSION}


def main() -> int:
    """Run what the file lacks."""

    def run(row: dict[str, Any]) -> dict[str, int]:
        job = job_of(row)
        options = {"use_logits_to_keep": False}  # as of a model that sees under transformers 4
        return SeeingSwiftRun(model_of(row), job, card_of(GPU), str(job.task), **options).go()

    add_missing(RUNS, cases(), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
