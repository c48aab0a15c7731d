"""One rank of TRL's own trainer under ZeRO or FSDP on an emulated GPU (see `tests.trl_sharing`, which starts it)."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.recorded_runs import job_of, model_of
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES

STEPS = 3
LAYER_CLASSES = {"llama": "LlamaDecoderLayer", "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer"}


def deepspeed_settings(job: Job) -> dict[str, Any]:
    """DeepSpeed's file as people write it: "auto" wherever the job says nothing else."""
    zero: dict[str, Any] = {"stage": int(job.strategy[-1]), "overlap_comm": job.zero.overlap_comm}
    names = {
        "reduce_bucket_size": "reduce_bucket_size",
        "prefetch_bucket_size": "stage3_prefetch_bucket_size",
        "param_persistence_threshold": "stage3_param_persistence_threshold",
    }
    for name, key in names.items():
        value = getattr(job.zero, name)
        zero[key] = "auto" if value is None else value
    if job.strategy == "zero3":
        zero |= {f"stage3_{name}": getattr(job.zero, name) for name in ("max_live_parameters", "max_reuse_distance")}
    if job.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if job.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    own = {"zero_force_ds_cpu_optimizer": False} if job.offload != "none" else {}  # torch's, on the host
    return {
        **own,
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
    }


def sharing(job: Job, model_type: str) -> dict[str, Any]:
    """The training arguments about how GPUs share the work."""
    if job.strategy.startswith("zero"):
        return {"deepspeed": deepspeed_settings(job)}
    if job.strategy == "ddp":
        return {}
    first = {
        "reshard_after_forward": "full_shard",
        "backward_prefetch": "no_prefetch",
        "use_orig_params": job.fsdp.use_orig_params,
    }
    whole = first if job.fsdp.version == 1 else {"reshard_after_forward": job.fsdp.reshard_after_forward}
    settings = {"version": job.fsdp.version, "transformer_layer_cls_to_wrap": [LAYER_CLASSES[model_type]], **whole}
    offload = " offload" if job.offload == "all" else ""
    return {"fsdp": f"full_shard auto_wrap{offload}" if job.fsdp.version == 1 else True, "fsdp_config": settings}


def usual_arguments(job: Job) -> dict[str, Any]:
    """The training arguments that say nothing of how GPUs share the work."""
    return {
        "output_dir": tempfile.mkdtemp(),
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
    }


class Peaks:
    """The peak of bytes in each phase as they were asked for: blocks that the allocator did not split hold more."""

    def __init__(self) -> None:
        self.phase, self.found = "", dict[str, int]()

    def enter(self, phase: str) -> None:
        """End a phase, and begin another."""
        if self.phase:
            peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
            self.found[self.phase] = max(self.found.get(self.phase, 0), peak)
        torch.cuda.reset_peak_memory_stats()
        self.phase = phase


def rows(job: Job, count: int) -> list[dict[str, Any]]:
    """Samples whose prompt and answers have exactly the job's tokens."""
    prompt = max(job.prompt_length or 0, 1)
    answer = [5] * (job.sequence_length - prompt)
    if job.task is None:
        return [{"input_ids": [3] * prompt + answer}] * count
    if job.task == "reward":
        return [{"chosen_ids": [3, *answer][-job.sequence_length :], "rejected_ids": [3, *answer]}] * count
    if job.task == "kto":
        one = {"prompt_ids": [3] * prompt, "completion_ids": answer, "KL_completion_ids": answer}
        ref = {"ref_logps": 0.0, "ref_KL_logps": 0.0} if job.reference == "precomputed" else {}
        return [{**one, "label": bool(number % 2), **ref} for number in range(count)]
    if job.task == "dpo":
        ref = {"ref_chosen_logps": 0.0, "ref_rejected_logps": 0.0} if job.reference == "precomputed" else {}
        return [{"prompt_ids": [3] * prompt, "chosen_ids": answer, "rejected_ids": answer, **ref}] * count
    one = {"prompt_input_ids": [3] * prompt, "prompt_attention_mask": [1] * prompt}
    for name in ("chosen", "rejected"):
        ids = [3] * prompt + answer
        one |= {f"{name}_input_ids": ids, f"{name}_attention_mask": [1] * len(ids), f"{name}_labels": ids}
    return [one] * count


def trainer_of(job: Job) -> tuple[type, type, dict[str, Any]]:
    """The trainer's class, that of its arguments, and more arguments."""
    import trl

    if job.task in ("orpo", "cpo", "simpo"):
        from trl.experimental.cpo import CPOConfig, CPOTrainer
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer

        if job.task == "orpo":
            return ORPOTrainer, ORPOConfig, {"remove_unused_columns": False}
        simpo = {"loss_type": "simpo", "cpo_alpha": 0.0} if job.task == "simpo" else {}
        return CPOTrainer, CPOConfig, {"remove_unused_columns": False, **simpo}
    name = {"dpo": "DPO", "kto": "KTO", "reward": "Reward"}.get(str(job.task), "SFT")
    return getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config"), {}


def adapters(job: Job) -> Any:
    """PEFT's configuration."""
    from peft import LoraConfig

    if job.method == "full":
        return None
    kind = "SEQ_CLS" if job.task == "reward" else "CAUSAL_LM"
    return LoraConfig(r=job.lora_rank, target_modules="all-linear", lora_dropout=0.0, task_type=kind)


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    from tests.trl_trace import tokenizer

    job, spec = job_of(row), model_of(row)
    made, arguments, more = trainer_of(job)
    count = job.num_gpus * job.global_batch_size * STEPS
    settings = {
        **usual_arguments(job),
        "gradient_checkpointing_kwargs": {"use_reentrant": False, "preserve_rng_state": False},  # TRL's own choice
        "max_length": job.sequence_length,
        **more,
        **row.get("options", {}),
        **sharing(job, spec.model_type),
    }
    if job.reference == "precomputed":
        settings["precompute_ref_log_probs"] = True
    args = arguments(**settings)
    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    config.pad_token_id = 0
    auto = AutoModelForCausalLM
    if job.task == "reward":
        auto, config.num_labels = AutoModelForSequenceClassification, 1

    def model() -> nn.Module:
        found: nn.Module = auto.from_config(config, dtype=DTYPES[job.dtype], attn_implementation=job.attention)
        return found

    data = Dataset.from_list(rows(job, count))
    peaks = Peaks()
    peaks.enter("loaded")
    extra = {"ref_model": model()} if job.loads_reference else {}
    same = lambda self, dataset, *_, **__: dataset  # noqa: E731
    with (
        patch.object(made, "_prepare_dataset", same, create=True),
        patch.object(made, "_precompute_ref_logps", same, create=True),
        patch(f"{made.__module__}.hash_module", lambda _: "", create=True),
        patch("datasets.Dataset.map", lambda self, *_, **__: self),
    ):
        trainer = made(
            model(), args=args, train_dataset=data, processing_class=tokenizer(64), peft_config=adapters(job), **extra
        )
        observe(trainer, peaks)
        trainer.train()
    peaks.enter("over")
    return peaks.found


def observe(trainer: Any, peaks: Peaks) -> None:
    """Enter phases: the forward, the reference's, backward, the optimizer's step."""
    import deepspeed

    step, backward = type(trainer).training_step, trainer.accelerator.backward
    reference = getattr(trainer, "ref_model", None)

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if peaks.phase == "loaded":
            for one in (reference, trainer.model):
                if one is not None:
                    one.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
                    one.register_forward_hook(after)
        peaks.enter("forward")
        return step(self, *args, **kwargs)

    def before(module: nn.Module, inputs: Any, kwargs: Any) -> None:
        if not torch.is_grad_enabled() and peaks.phase == "forward":
            peaks.enter("reference")

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if peaks.phase == "reference":
            peaks.enter("forward")

    def entering(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def entered(*args: Any, **kwargs: Any) -> Any:
            peaks.enter(phase)
            return function(*args, **kwargs)

        return entered

    trainer.accelerator.backward = entering("backward", backward)
    trainer.accelerator.clip_grad_norm_ = entering("optimizer", trainer.accelerator.clip_grad_norm_)
    engine = deepspeed.runtime.engine.DeepSpeedEngine
    engine._take_model_step = entering("optimizer", engine._take_model_step)
    trainer.training_step = training_step.__get__(trainer)


def print_peaks(run: Callable[[dict[str, Any]], dict[str, int]]) -> None:
    """Run the row that the program is given, print the peaks of rank 0, or of the row's, and end the process."""
    row = json.loads(sys.argv[1])
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    peaks = run(row)
    if os.environ.get("RANK", "0") == str(row.get("rank", 0)):
        print("PEAKS " + json.dumps(peaks), flush=True)
    os._exit(0)


if __name__ == "__main__":
    print_peaks(run)
