"""One rank of ms-swift's own DPO or KTO trainer on an emulated GPU (see `tests.swift_sharing`, which starts it)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import swift_trace
from tests.llamafactory_sharing_run import _answers
from tests.recorded_runs import job_of, model_of
from tests.swift_trace import Swift
from tests.trl_sharing_run import STEPS, Peaks, adapters, observe, sharing
from vramplan.torch_backend.dtypes import DTYPES


class Shared(Swift):
    """The trainer with its own arguments about the GPUs."""

    def arguments(self, folder: str) -> dict[str, Any]:
        """The training arguments."""
        job = self.job
        return {
            "output_dir": folder,
            "per_device_train_batch_size": job.micro_batch_size,
            "gradient_accumulation_steps": job.gradient_accumulation_steps,
            "gradient_checkpointing": job.checkpointing == "full",
            "gradient_checkpointing_kwargs": {"use_reentrant": job.reentrant, "preserve_rng_state": False},
            "bf16": True,
            "optim": job.optimizer,
            "max_steps": STEPS,
            "save_strategy": "no",
            "report_to": "none",
            "dataloader_pin_memory": False,
            "logging_steps": 1000,
            **self.options,
        }


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.trl_trace import tokenizer

    job, spec = job_of(row), model_of(row)
    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    setup = Shared(job, job.prompt_length or 0, sharing(job, spec.model_type))
    batch = {name: one if name == "label" else _answers(one) for name, one in setup.batch().items()}
    plain = swift_trace._template

    def template(*args: Any, **settings: Any) -> Any:
        made = plain(*args, **settings)
        labels = [number % 2 == 0 for number in range(job.micro_batch_size)]
        made.remove_post_encode_hook = lambda: None
        made.data_collator = lambda rows, padding_to=None: {
            name: labels if name == "label" else one for name, one in batch.items()
        }
        return made

    def model() -> nn.Module:
        made: nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[job.dtype], attn_implementation=job.attention
        )
        return made

    peaks = Peaks()
    peaks.enter("loaded")
    reference = model() if job.loads_reference else None
    # as many samples as the steps take
    count = job.num_gpus * job.global_batch_size * STEPS
    with patch.object(swift_trace, "_template", template), patch("datasets.Dataset.from_list", _rows(count)):
        trainer = setup.trainer(model(), adapters(job), tempfile.mkdtemp(), tokenizer(64), reference)
    observe(trainer, peaks)
    trainer.train()
    peaks.enter("over")
    return peaks.found


def _rows(count: int) -> Any:
    """A data set of so many rows, whatever they are."""
    from datasets import Dataset

    made = Dataset.from_list([{"input_ids": [3]}] * count)
    return lambda rows: made


def main() -> int:
    """Run the row that is given, and print rank 0's peaks."""
    row = json.loads(sys.argv[1])
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    found = run(row)
    if os.environ.get("RANK", "0") == "0":
        print("PEAKS " + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
