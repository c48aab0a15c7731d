"""One rank of LLaMA-Factory's own trainer on an emulated GPU (see `tests.llamafactory_sharing`, which starts it)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.llamafactory_trace import Custom, FinetuningArguments, load
from tests.recorded_runs import job_of, model_of
from tests.trl_sharing_run import STEPS, Peaks, adapters, observe, print_peaks, sharing
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES

ANSWERS = 3
"""A token of an answer, and the label of one that counts."""


def run(row: dict[str, Any], classes: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, TrainingArguments

    from tests.trl_trace import tokenizer

    job, spec = job_of(row), model_of(row)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=job.micro_batch_size,
        gradient_accumulation_steps=job.gradient_accumulation_steps,
        gradient_checkpointing=job.checkpointing == "full",
        gradient_checkpointing_kwargs={"use_reentrant": job.reentrant, "preserve_rng_state": False},
        bf16=True,
        optim=job.optimizer,
        max_steps=STEPS,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
        logging_steps=1000,
        remove_unused_columns=False,
        **sharing(job, spec.model_type),
    )
    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})

    def model() -> nn.Module:
        made: nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[job.dtype], attn_implementation=job.attention
        )
        return made

    peaks = Peaks()
    peaks.enter("loaded")
    own: dict[str, Any] = {"model": model()}
    if job.method != "full":
        own["model"] = _with_adapters(own["model"], job)
    if job.task == "reward":
        from trl import AutoModelForCausalLMWithValueHead

        own["model"] = AutoModelForCausalLMWithValueHead.from_pretrained(own["model"])
    else:
        own["ref_model"] = model() if job.loads_reference else None
    batch = Custom(job, 0, {}).batch()
    trainer = classes[str(job.task)](
        **own,
        finetuning_args=FinetuningArguments(),
        processor=None,
        args=args,
        data_collator=lambda rows: {name: _answers(one) for name, one in batch.items()},
        train_dataset=Dataset.from_list([{"input_ids": [3]}] * (job.num_gpus * job.global_batch_size * STEPS)),
        tokenizer=tokenizer(64),
    )
    observe(trainer, peaks)
    trainer.train()
    peaks.enter("over")
    return peaks.found


def _with_adapters(model: Any, job: Job) -> Any:
    """Adapters whatever the stage, as ``init_adapter`` adds them."""
    from peft import get_peft_model

    if job.checkpointing == "full":
        model.enable_input_require_grads()
    config = adapters(job)
    config.task_type = "CAUSAL_LM"
    return get_peft_model(model, config)


def _answers(tensor: torch.Tensor) -> torch.Tensor:
    """The same shape; every other sample is desirable."""
    if tensor.dtype is torch.bool:
        return torch.arange(len(tensor)) % 2 == 0
    return torch.full_like(tensor, ANSWERS) if tensor.dim() > 1 else tensor


if __name__ == "__main__":
    print_peaks(lambda row: run(row, load(Path(os.environ["LLAMAFACTORY"]) / "llamafactory")))
