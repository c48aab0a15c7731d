"""One rank of ms-swift's SFT, DPO or GRPO trainer on emulated GPUs that share each text (`tests.swift_sequence`)."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import swift_grpo_trace, swift_trace
from tests.recorded_runs import job_of, model_of
from tests.swift_sharing_run import generated, plain
from tests.trl_sharing_run import STEPS, Peaks, adapters, observe, print_peaks, sharing
from tests.trl_trace import Setup, ones, tokenizer
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.trace import flash_attn_stub


class Text(Setup):
    """Seq2SeqTrainer, whose template is a stand-in."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        """The trainer."""
        from datasets import Dataset
        from swift.trainers import Seq2SeqTrainer, Seq2SeqTrainingArguments

        model = swift_trace.as_swift_loads(model, None, peft, self.job)
        own = self.arguments(folder) | {"check_model": False, "remove_unused_columns": False, "tuner_type": "lora"}
        names = Seq2SeqTrainingArguments.__dataclass_fields__
        template = swift_trace._template(words, "causal_lm", self.job.joins_samples)
        template.model_accepts_loss_kwargs = None
        template.compute_sft_loss = lambda model, inputs, **_: model(**inputs)
        return Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(**{name: one for name, one in own.items() if name in names}),
            template=template,
            train_dataset=Dataset.from_list([{"input_ids": [3]}]),
        )

    def batch(self) -> dict[str, Any]:
        """A micro-batch, as the template collates it."""
        rows, length = self.job.micro_batch_size, self.job.sequence_length
        if self.job.joins_samples:
            return {name: ones(1, rows * length) for name in ("input_ids", "labels", "position_ids")}
        return {name: ones(rows, length) for name in ("input_ids", "labels", "attention_mask")}


class SharedGrpo(swift_grpo_trace.SwiftGrpo):
    """GRPOTrainer, which multiplies micro-batches by the GPUs that share texts."""

    def arguments(self, folder: str) -> dict[str, Any]:
        """The same before that."""
        steps = self.job.gradient_accumulation_steps // self.job.swift.sequence_parallel
        return super().arguments(folder) | {"gradient_accumulation_steps": steps}


SETUPS: dict[str, type[Setup]] = {"None": Text, "dpo": swift_trace.Swift, "grpo": SharedGrpo}


def lengths(position_ids: torch.Tensor) -> torch.Tensor:
    """Ends of the only text of a row, which a GPU that computes nothing does not tell."""
    return torch.tensor([0, position_ids.shape[-1]], dtype=torch.int32)


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from datasets import Dataset
    from swift.sequence_parallel import sequence_parallel
    from transformers import TrainingArguments

    job, spec = job_of(row), model_of(row)
    folder, gpus = tempfile.mkdtemp(), job.swift.sequence_parallel
    config = from_config(spec, plain(job), "meta", False, nullcontext).module
    if job.swift.cross_entropy_chunk:
        os.environ["CELOSS_PARALLEL_SIZE"] = str(job.swift.cross_entropy_chunk)
    settings = {
        "use_cpu": False, "bf16": True, "max_steps": STEPS, "save_strategy": "no", "dataloader_pin_memory": False,
        "logging_steps": 1000, **row.get("options", {}), **sharing(job, "llama"),
    }  # fmt: skip
    setup = SETUPS[str(job.task)](job, job.prompt_length or 0, settings)
    names = TrainingArguments.__dataclass_fields__
    first = TrainingArguments(**{name: one for name, one in setup.arguments(folder).items() if name in names})

    def model() -> nn.Module:
        made: nn.Module = type(config)._from_config(
            config.config, dtype=DTYPES[job.dtype], attn_implementation="flash_attention_2"
        )
        made.model_meta = SimpleNamespace(is_multimodal=False, model_arch=None)  # type: ignore[assignment]
        made.model_info = SimpleNamespace(is_moe_model=False)  # type: ignore[assignment]
        return made

    peaks, words = Peaks(), tokenizer(64)
    peaks.enter("loaded")
    reference, subject = (model() if job.loads_reference else None), model()
    sequence_parallel.prepare(gpus, model=subject, tokenizer=words, padding_free=job.joins_samples)
    if reference is not None:
        sequence_parallel.prepare(gpus, model=reference, tokenizer=words, padding_free=job.joins_samples)
    own = swift_trace._template

    def template(*args: Any) -> Any:
        made = own(*args)
        made.sequence_parallel_size, made.mode, made.remove_post_encode_hook = gpus, "train", lambda: None
        return made

    with ExitStack() as stack:
        stack.enter_context(patch.object(swift_trace, "_template", template))
        stack.enter_context(patch.object(swift_grpo_trace, "_template", template))
        for name in ("sequence_parallel.sequence_parallel", "rlhf_trainers.grpo_trainer"):
            stack.enter_context(patch(f"swift.{name}.get_cu_seqlens_from_position_ids", lengths))
        ends = torch.arange(0, job.sequence_length * (2 * job.micro_batch_size + 1), job.sequence_length).cuda()
        answers = {"cu_seq_lens_q": ends.int()}  # of DPO
        stack.enter_context(patch("swift.trainers.mixin.get_packed_seq_params", lambda _: answers))
        stack.enter_context(patch("swift.trainers.mixin.compute_acc", lambda *_, **__: {}))
        trainer = setup.trainer(subject, adapters(job), folder, words, reference)  # type: ignore[call-arg]
        trainer.train_dataset = Dataset.from_list([{"input_ids": [3]}] * (job.num_gpus * job.global_batch_size * STEPS))
        trainer.data_collator = lambda rows: setup.batch()
        if job.task == "grpo":
            generated(trainer, setup, peaks)
        observe(trainer, peaks)
        trainer.train()
    peaks.enter("over")
    del first
    return peaks.found


if __name__ == "__main__":
    with flash_attn_stub.installed():
        print_peaks(run)
