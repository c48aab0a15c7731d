"""One rank of TRL's own distillation trainers under ZeRO or DDP on an emulated GPU (see `tests.trl_gkd_sharing`)."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from tests.helpers import spec_of
from tests.recorded_runs import job_of, model_of
from tests.trl_gkd_trace import BETAS
from tests.trl_sharing_run import STEPS, Peaks, adapters, observe, print_peaks, sharing
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.dtypes import DTYPES


def _collate(job: Job) -> Any:
    """Micro-batches of whole samples, as DataCollatorForChatML makes them."""
    length, prompt = job.sequence_length, max(job.prompt_length or 0, 1)

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        def ones(width: int) -> torch.Tensor:
            return torch.ones(len(samples), width, dtype=torch.int64)

        labels = ones(length)
        labels[:, :prompt] = -100
        whole = {"input_ids": ones(length), "attention_mask": ones(length), "labels": labels}
        return whole | {"prompts": ones(prompt), "prompt_attention_mask": ones(prompt)}

    return collate


def _model(spec: ModelSpec, job: Job, dtype: str) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    config.pad_token_id = 0
    made: nn.Module = AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation=job.attention)
    return made


def _generation(job: Job) -> Any:
    """DistillationTrainer's completions for all micro-batches of an optimizer step."""

    def generate(trainer: Any, inputs: list[Any]) -> dict[str, torch.Tensor]:
        prompt = max(job.prompt_length or 0, 1)
        sizes = {"prompt": prompt, "completion": job.sequence_length - prompt}
        made = {
            f"{name}_{kind}": torch.ones(len(inputs), size, dtype=torch.int64, device=trainer.accelerator.device)
            for name, size in sizes.items()
            for kind in ("ids", "mask")
        }
        return made | {"num_items_in_batch": torch.ones((), device=trainer.accelerator.device)}

    return generate


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    import trl
    from datasets import Dataset
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    from tests.trl_trace import tokenizer

    job, spec = job_of(row), model_of(row)
    count = job.num_gpus * job.global_batch_size * STEPS
    by_tiles = job.loss == "chunked"
    arguments, made = (trl.DistillationConfig, trl.DistillationTrainer) if by_tiles else (GKDConfig, GKDTrainer)
    own: dict[str, Any] = {} if by_tiles else {"lmbda": 0.0, "max_length": job.sequence_length}
    args = arguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=job.micro_batch_size,
        gradient_accumulation_steps=job.gradient_accumulation_steps,
        gradient_checkpointing=job.checkpointing == "full",
        bf16=True,
        optim=job.optimizer,
        max_steps=STEPS,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        logging_steps=1000,
        beta=BETAS[job.divergence],
        **own,
        **sharing(job, spec.model_type),
    )
    messages = [{"role": "user", "content": "w3"}, {"role": "assistant", "content": "w4"}]
    sample: dict[str, Any] = {"prompt": "w3"} if by_tiles else {"messages": messages}
    collator = {} if by_tiles else {"data_collator": _collate(job)}
    if by_tiles:
        made._generate_and_score_completions = _generation(job)
    peaks = Peaks()
    peaks.enter("loaded")
    trainer = made(
        _model(spec, job, job.dtype),
        _model(spec_of(str(job.teacher)), job, job.dtype_of_teacher),
        args=args,
        **collator,
        train_dataset=Dataset.from_list([sample] * count),
        processing_class=tokenizer(64),
        peft_config=adapters(job),
    )
    trainer.ref_model = trainer.teacher_model  # what is observed without gradients
    observe(trainer, peaks)
    trainer.train()
    peaks.enter("over")
    return {{"reference": "teacher"}.get(phase, phase): size for phase, size in peaks.found.items()}


if __name__ == "__main__":
    print_peaks(run)
