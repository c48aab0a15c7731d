"""One rank of ms-swift's DPO, KTO, GKD or GRPO trainer under ZeRO on an emulated GPU, with the job's images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.helpers import spec_of
from tests.recorded_runs import job_of, model_of
from tests.swift_gkd_trace import SwiftGkd
from tests.swift_grpo_trace import SwiftGrpo
from tests.swift_seeing import SeeingSwift
from tests.swift_seeing_grpo_trace import SeeingSwiftGrpo
from tests.swift_trace import Swift
from tests.trl_sharing_run import STEPS, Peaks, adapters, observe, print_peaks, sharing
from tests.trl_trace import Setup, tokenizer
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.adapters import excluded_modules, freeze
from vramplan.torch_backend.model.build import from_config

SETUPS: dict[tuple[str, bool], type[Setup]] = {
    ("dpo", False): Swift,
    ("kto", False): Swift,
    ("dpo", True): SeeingSwift,
    ("gkd", False): SwiftGkd,
    ("grpo", False): SwiftGrpo,
    ("grpo", True): SeeingSwiftGrpo,
}
"""By task, and whether there are images."""


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from datasets import Dataset
    from transformers import TrainingArguments

    job, spec = job_of(row), model_of(row)
    folder, sees = tempfile.mkdtemp(), job.images > 0
    subject = from_config(spec, plain(job), "meta", False, nullcontext)
    taught = job.teacher is not None
    teacher: Any = (
        from_config(spec_of(str(job.teacher)), plain(job), "meta", False, nullcontext).module if taught else None
    )
    settings = {
        "use_cpu": False,
        "bf16": True,
        "max_steps": STEPS,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "logging_steps": 1000,
        **row.get("options", {}),
        **sharing(job, "llama"),
    }
    setup = SETUPS[str(job.task), sees](job, job.prompt_length or 0, settings)
    names = TrainingArguments.__dataclass_fields__
    # as ms-swift does before it loads models, so that ZeRO-3 shards them as they are made
    first = TrainingArguments(**{name: one for name, one in setup.arguments(folder).items() if name in names})
    processor = IMAGE_PROCESSORS.get(spec.model_type)

    def model() -> nn.Module:
        kind = {"dtype": DTYPES[job.dtype], "attn_implementation": job.attention}
        made: nn.Module = type(subject.module)._from_config(subject.module.config, **kind)
        if processor is not None:
            freeze(made, job, processor)
        return made

    peft = adapters(job)
    if sees:
        assert processor is not None
        assert subject.images is not None
        setup.__dict__.update(images=subject.images, trains=True)
        if peft is not None:
            peft.exclude_modules = excluded_modules(job, processor)
    peaks = Peaks()
    peaks.enter("loaded")
    reference = model() if job.loads_reference else None
    if teacher is not None:
        reference = type(teacher)._from_config(teacher.config, dtype=DTYPES[job.dtype_of_teacher])
    trainer = setup.trainer(model(), peft, folder, tokenizer(64), reference)  # type: ignore[call-arg]
    count = job.num_gpus * job.global_batch_size * STEPS
    if not sees:
        trainer.template.remove_post_encode_hook = lambda: None
    trainer.train_dataset = Dataset.from_list([{"input_ids": [3]}] * count)
    trainer.data_collator = lambda rows: setup.batch()
    if job.task == "grpo":
        generated(trainer, setup, peaks)
    if taught:
        trainer.ref_model = trainer.teacher_model  # what is observed without gradients
        trainer._prepare_inputs = _distilled
    observe(trainer, peaks)
    trainer.train()
    peaks.enter("over")
    del first
    return {"teacher" if taught and phase == "reference" else phase: size for phase, size in peaks.found.items()}


def plain(job: Job) -> Job:
    """The job as one of text alone, which says what a model is made of."""
    return job if job.teacher is None else job.model_copy(update={"task": None, "teacher": None, "loss": "standard"})


def _distilled(batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What GKDTrainer makes of a micro-batch of the data set."""
    batch = {name: one.cuda() for name, one in batch.items()}
    source = SimpleNamespace(data_source="dataset")
    return {"model_inputs": dict(batch), "teacher_model_inputs": dict(batch), "gkd_batch": source}


def generated(trainer: Any, setup: Any, peaks: Peaks) -> None:
    """Score completions in front of each step, by the model and its reference, and hand them to it."""
    from swift.trainers import disable_gradient_checkpointing

    def on_device(batch: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one.cuda() if isinstance(one, torch.Tensor) else one for name, one in batch.items()}

    send = sending(trainer, setup.job)

    def prepare(_: Any) -> Mapping[str, Any]:
        if send is not None:
            peaks.enter("generation")
            send()
        if peaks.phase != "loaded":
            peaks.enter("scoring")
        batch: dict[str, Any] = setup.inputs(on_device(setup.batch()))
        models = [trainer.model] + ([trainer.ref_model] if trainer.ref_model is not None else [])
        if setup.job.importance_sampling or setup.job.reference:
            peaks.enter("scoring")
            with torch.no_grad():
                for one in models:
                    with disable_gradient_checkpointing(one, trainer.args.gradient_checkpointing_kwargs):
                        trainer._get_per_token_logps_and_entropies(
                            one, dict(batch["model_inputs"]), batch["grpo_batch"]
                        )
        peaks.enter("forward")
        return batch

    trainer._prepare_inputs = prepare


def sending(trainer: Any, job: Job) -> Callable[[], None] | None:
    """What sends the weights to a vLLM that takes no memory, and lets a model wait in host memory as one generates."""
    if job.generate_with == "transformers":
        return None
    trainer.vllm_mode = "server" if job.generate_with == "vllm_server" else "colocate"
    trainer.args.move_model_batches = None if job.vllm_sync_parts == 1 else job.vllm_sync_parts
    trainer.args.offload_model = job.rollout_offload in ("model", "all")
    trainer.args.offload_optimizer = job.rollout_offload in ("optimizer", "all")
    trainer.rollout_enable_lora, trainer.base_sync_done = False, False
    trainer.parameter_groups, trainer.parameter_groups_no_lora = trainer.split_batches()
    trainer.vllm_client = SimpleNamespace(
        update_flattened_params=lambda *_: None, process_weights_after_loading=lambda: None
    )
    inner = SimpleNamespace(load_weights=lambda weights: [None for _ in weights][:0])
    trainer.engine = SimpleNamespace(inner_model=inner, engine=SimpleNamespace(model_config=None))
    names = ("patch_vllm_moe_model_weight_loader", "finish_vllm_weight_reload")

    def send() -> None:
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(patch(f"swift.rlhf_trainers.rollout_mixin.{name}", lambda *_, **__: None))
            trainer._move_full_model_to_vllm()
        with trainer.offload_context():
            pass

    return send


if __name__ == "__main__":
    print_peaks(run)
