"""One rank of ms-swift's or TRL's PPOTrainer on an emulated GPU: its ``train``, of which ``generate`` is left out."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.helpers import spec_of
from tests.recorded_runs import job_of, model_of
from tests.swift_trace import as_swift_loads
from tests.trl_sharing_run import Peaks, deepspeed_settings, print_peaks, sharing
from tests.trl_trace import tokenizer
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.build import from_config

UPDATES = 2
"""Optimizer states, and the scores of an earlier generation, exist in the second."""


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from datasets import Dataset

    job, spec = job_of(row), model_of(row)
    new = job.sequence_length - (job.prompt_length or 1)
    language = _language_model(spec, job)  # before the arguments, by which ZeRO-3 shards what is made
    configs = [_scoring(str(name), job) for name in (job.value_model, job.reward_model)]
    is_swift = job.ppo_trainer == "ms_swift"
    arguments = (_swift_arguments if is_swift else _trl_arguments)(job, new)
    peaks = Peaks()
    peaks.enter("loaded")
    reference = _made(language, job) if job.loads_reference else None
    values, rewards = (
        _made(partial(_scorer, config, dtype, job), job)
        for config, dtype in zip(configs, (job.dtype_of_values, job.dtype_of_rewards), strict=True)
    )
    policy = _made(language, job)
    if job.method != "full":
        policy = _adapted(policy, job, "CAUSAL_LM")
    rows = job.micro_batch_size * job.gradient_accumulation_steps
    # twice as many as are trained on: at the end of the data accelerate has each micro-batch step
    samples = [{"input_ids": [3]}] * (job.num_gpus * rows * 2 * UPDATES)
    queries = torch.full((rows, job.prompt_length or 1), 3, dtype=torch.int64)
    trainer = (_swift_trainer if is_swift else _trl_trainer)(
        {"model": policy, "ref_model": reference, "reward_model": rewards, "value_model": values},
        job,
        args=arguments,
        train_dataset=Dataset.from_list(samples),
        queries=queries,
    )
    # with adapters DeepSpeed drops the optimizer's empty group, at which the scheduler of torch 2.13 stops
    trainer.lr_scheduler.step = lambda *_: None
    policy.generate = _generated(spec.config["vocab_size"], new)
    with ExitStack() as stack:
        _observe(trainer, trainer.value_model, peaks, stack)
        trainer.train()
    peaks.enter("over")
    return peaks.found


def _usual_arguments(job: Job, new: int) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "bf16": True,
        "optim": job.optimizer,
        "report_to": "none",
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "num_ppo_epochs": 1,
        "num_sample_generations": 0,
        "response_length": new,
        "local_rollout_forward_batch_size": job.rollout_batch_size,
        "total_episodes": job.num_gpus * job.global_batch_size * UPDATES,
        "stop_token_id": 1,
    }


def _swift_arguments(job: Job, new: int) -> Any:
    from swift.rlhf_trainers.arguments import PPOConfig

    settings = {
        **_usual_arguments(job, new),
        "world_size": job.num_gpus,  # as ms-swift hands it on (arguments/rlhf_args.py: _prepare_training_args)
        "check_model": False,
        "remove_unused_columns": False,
        "tuner_type": "full" if job.method == "full" else "lora",
        **sharing(job, "llama"),
    }
    names = PPOConfig.__dataclass_fields__
    return PPOConfig(**{name: one for name, one in settings.items() if name in names})


def _swift_trainer(models: dict[str, Any], job: Job, queries: torch.Tensor, **kwargs: Any) -> Any:
    from swift.rlhf_trainers import PPOTrainer

    for name in ("ref_model", "value_model", "reward_model"):  # pipelines/train/rlhf.py: _prepare_single_model
        if models[name] is not None:
            models[name].config.use_cache = False
    for name in ("ref_model", "reward_model"):
        if models[name] is not None:
            models[name].requires_grad_(False).eval()
    policy = models["model"]
    if job.method != "full":
        models["value_model"] = _adapted(models["value_model"], job, "SEQ_CLS")
        as_swift_loads(policy.get_base_model(), None, None, job)
    as_swift_loads(policy, models["ref_model"], None, job)
    template = _template(tokenizer(64), lambda *_, **__: {"input_ids": queries})
    return PPOTrainer(**models, template=template, eval_dataset=None, **kwargs)


def _trl_arguments(job: Job, new: int) -> Any:
    """TRL's, as accelerate's launcher starts DeepSpeed: transformers stops at PPOConfig's ``deepspeed``."""
    from trl.experimental.ppo import PPOConfig

    if job.uses_deepspeed:
        path = Path(tempfile.mkdtemp()) / "deepspeed.json"
        path.write_text(json.dumps({**deepspeed_settings(job), "bf16": {"enabled": True}}))
        os.environ |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(path)}
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(job.strategy == "zero3").lower()
    return PPOConfig(**_usual_arguments(job, new))


def _trl_trainer(models: dict[str, Any], job: Job, queries: torch.Tensor, **kwargs: Any) -> Any:
    from trl.experimental.ppo import PPOTrainer

    words = tokenizer(64)
    return PPOTrainer(
        **models, processing_class=words, data_collator=lambda _: {"input_ids": queries}, eval_dataset=None, **kwargs
    )


def _made(make: Callable[[], nn.Module], job: Job) -> nn.Module:
    """A model where it is loaded: on the GPU; ZeRO-3 shards it as it is made."""
    if job.strategy == "zero3":
        return make()
    with torch.device("cuda"):
        return make()


def _language_model(spec: ModelSpec, job: Job) -> Callable[[], nn.Module]:
    """What makes the policy, and the reference."""
    plain = job.model_copy(update={"task": None, "value_model": None, "ppo_trainer": "trl"})
    subject: Any = from_config(spec, plain, "meta", False, nullcontext)
    kind, config = type(subject.module), subject.module.config
    return lambda: kind._from_config(config, dtype=DTYPES[job.dtype], attn_implementation=job.attention)


def _scoring(name: str, job: Job) -> Any:
    """The configuration of a model of one label."""
    config = from_config(spec_of(name), Job(attention=job.attention), "meta", False, nullcontext).module.config
    config.num_labels, config.pad_token_id = 1, 0
    return config


def _scorer(config: Any, dtype: str, job: Job) -> nn.Module:
    """A model of one label."""
    from transformers import AutoModelForSequenceClassification

    made: nn.Module = AutoModelForSequenceClassification.from_config(
        config, attn_implementation=job.attention, dtype=DTYPES[dtype]
    )
    return made


def _adapted(model: nn.Module, job: Job, kind: str) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    model.requires_grad_(False)
    targets: Any = "all-linear" if job.lora_targets is None else list(job.lora_targets)
    adapters = LoraConfig(r=job.lora_rank, target_modules=targets, lora_dropout=0.0, task_type=kind)
    return get_peft_model(model, adapters, autocast_adapter_dtype=job.lora_dtype == "fp32")  # type: ignore[arg-type]


def _template(words: Any, collated: Callable[..., Any]) -> Any:
    """What the trainer asks of a template."""
    return SimpleNamespace(
        is_encoder_decoder=False,
        padding_free=False,
        padding_side="left",
        packing=False,
        task_type="causal_lm",
        tokenizer=words,
        processor=words,
        max_length=None,
        sequence_parallel_size=1,
        data_collator=collated,
        get_base_model=lambda model: model.get_base_model() if hasattr(model, "get_base_model") else model,
        forward_context=lambda model, inputs: nullcontext(),
        template_meta=SimpleNamespace(suffix=[], stop_words=[]),
        remove_post_encode_hook=lambda: None,
    )


def _generated(vocabulary: int, new: int) -> Callable[..., Any]:
    """``generate``, of which tokens and their scores are left."""

    def generate(input_ids: torch.Tensor, **_: Any) -> Any:
        rows, length = input_ids.shape
        return SimpleNamespace(
            sequences=torch.zeros((rows, length + new), dtype=torch.int64, device="cuda"),
            scores=tuple(torch.zeros((rows, vocabulary), dtype=torch.float32, device="cuda") for _ in range(new)),
        )

    return generate


def _variance(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """``masked_var`` without the error of an empty mask: nothing is computed here that could be read."""
    mean = (values * mask).sum() / mask.sum()
    variance = ((values - mean) ** 2 * mask).sum() / mask.sum()
    return variance * (mask.sum() / (mask.sum() - 1))


def _observe(trainer: Any, values: nn.Module, peaks: Peaks, stack: ExitStack) -> None:
    """Enter phases as the trainer's functions are called."""
    from trl.experimental.ppo import ppo_trainer

    def entering(phase: Callable[..., str], function: Callable[..., Any]) -> Callable[..., Any]:
        def entered(*args: Any, **kwargs: Any) -> Any:
            peaks.enter(phase(*args))
            return function(*args, **kwargs)

        return entered

    @contextmanager
    def unwrapped(*args: Any, **kwargs: Any) -> Iterator[Any]:
        """ZeRO-3 gathers the weights of both models that train before the generation, and until its end."""
        peaks.enter("generation")
        with unwrap(*args, **kwargs) as model:
            yield model
        peaks.enter("scoring")

    accelerator, module = trainer.accelerator, ppo_trainer
    unwrap = module.unwrap_model_for_generation
    inner = {id(values), id(getattr(values, "module", values))}
    functions = {
        "unwrap_model_for_generation": unwrapped,
        "forward": entering(lambda *_: "forward" if torch.is_grad_enabled() else "scoring", module.forward),
        "masked_var": _variance,
        "get_reward": entering(lambda model, *_: "scoring" if id(model) in inner else "reward", module.get_reward),
    }
    for name, function in functions.items():
        stack.enter_context(patch.object(module, name, function))
    accelerator.backward = entering(lambda *_: "backward", accelerator.backward)
    if trainer.is_deepspeed_enabled:
        import deepspeed

        engine = deepspeed.runtime.engine.DeepSpeedEngine
        engine._take_model_step = entering(lambda *_: "optimizer", engine._take_model_step)
        return
    step = trainer.optimizer.step
    trainer.optimizer.step = entering(lambda *_: "optimizer" if accelerator.sync_gradients else "forward", step)


if __name__ == "__main__":
    print_peaks(run)
