"""TRL's PPOTrainer with a value model on fake tensors: its own ``train``, of which ``generate`` alone is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.helpers import spec_of
from tests.trl_trace import Answers, MaskFakes, _called_by_trl, compiles
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import tensors_in_lists
from vramplan.torch_backend.trace.storage_tracker import StorageTracker

aten = torch.ops.aten
UPDATES = 2
"""Optimizer states, and the logits of an earlier generation, exist in the second."""


class Numbers(Answers):
    """What the loop reads back: no mask is empty."""

    def answer(self, func: Any, args: Any, module: Any) -> Any:
        """The result of an operation that needs data."""
        if func is aten._local_scalar_dense.default and _called_by_trl():
            return False if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 1
        return super().answer(func, args, module)


class PpoRun:
    """One tracked run: two updates of one pass over their batch."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu, **options: Any) -> None:
        self.spec, self.job, self.gpu, self.options = spec, job, gpu, options
        self.fakes = MaskFakes(job.sequence_length - (job.prompt_length or 1))
        answers = Numbers(job, spec.name, self.fakes.answer_tokens)
        self.tracker = StorageTracker(self.fakes, answers.answer, gpu)
        self.fakes.tracker = self.tracker

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        with ExitStack() as stack:
            for one in (quiet(), as_cuda(self.gpu), tensors_in_lists(), compiles()):
                stack.enter_context(one)
            self._run()
        timeline = self.tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    def _policy(self, job: Job) -> nn.Module:
        model: Any = from_config(self.spec, job, "meta", False, nullcontext).module
        model.config.use_cache = True  # nobody switches it off
        if job.method == "full":
            return model
        from peft import LoraConfig, get_peft_model

        targets: Any = "all-linear" if job.lora_targets is None else list(job.lora_targets)
        with torch.device("meta"):
            model = get_peft_model(model, LoraConfig(r=job.lora_rank, target_modules=targets, task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.to(DTYPES[job.lora_dtype])
        return model

    def _scorer(self, spec: ModelSpec, dtype: str) -> nn.Module:
        """A model of one label."""
        from transformers import AutoModelForSequenceClassification

        config = from_config(spec, self.job, "meta", False, nullcontext).module.config
        attention = config._attn_implementation
        config.num_labels, config.use_cache = 1, True
        with torch.device("meta"):
            return AutoModelForSequenceClassification.from_config(
                config, attn_implementation=attention, dtype=DTYPES[dtype]
            )

    def _run(self) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from trl.experimental.ppo import ppo_trainer
        from trl.trainer.utils import disable_dropout_in_model

        job, tracker = self.job, self.tracker
        recipe = optimizers.recipe(job)
        policy = self._policy(job)
        value = self._scorer(spec_of(str(job.value_model)), job.dtype_of_values)
        reward = self._scorer(spec_of(str(job.reward_model)), job.dtype_of_rewards)
        reference = self._policy(job.model_copy(update={"method": "full"})) if job.loads_reference else None
        models = [one for one in (policy, reference, value, reward) if one is not None]
        for one in models:
            disable_dropout_in_model(one)
        AcceleratorState._reset_state(True)
        mixed = "no" if job.autocast == "none" else job.autocast
        steps = job.gradient_accumulation_steps
        accelerator = Accelerator(cpu=True, mixed_precision=mixed, gradient_accumulation_steps=steps)
        for module in (module for one in models for module in one.modules()):
            for name, buffer in module._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="meta")
        wrapper = ppo_trainer.PolicyAndValueWrapper(policy, value)
        wrapper.config = policy.config
        with self.fakes.mode:
            tracker.sums.calibrate(tracker)
            tracker.enter("loaded")
            place(wrapper, tracker)
            for one in (reference, reward):
                if one is not None:
                    place(one, tracker)
            optimizer = optimizers.make(recipe, wrapper, job)
            wrapped = accelerator.prepare_model(wrapper, device_placement=False)
            stepped = accelerator.prepare_optimizer(optimizer, device_placement=False)
            queries = torch.empty((job.micro_batch_size * steps, job.prompt_length or 1), dtype=torch.int64)
        trainer = self._trainer(ppo_trainer.PPOTrainer, accelerator, wrapped, stepped)
        trainer.ref_model, trainer.reward_model = reference, reward
        trainer.dataloader = [{"input_ids": queries}]
        policy.generate = self._generated
        with self._phases(ppo_trainer, trainer, value), tracker.modules(wrapper), self.fakes.mode, tracker:
            trainer.train()

    def _generated(self, input_ids: Any, **_: Any) -> Any:
        """What ``generate`` returns: tokens, and their scores."""
        vocabulary = self.spec.config["vocab_size"]
        rows, new = input_ids.shape[0], self.job.sequence_length - (self.job.prompt_length or 1)
        return SimpleNamespace(
            sequences=torch.empty((rows, self.job.sequence_length), dtype=torch.int64),
            scores=tuple(torch.empty((rows, vocabulary), dtype=torch.float32) for _ in range(new)),
        )

    def _trainer(self, kind: Any, accelerator: Any, model: Any, optimizer: Any) -> Any:
        job = self.job
        trainer = object.__new__(kind)
        rows, steps = job.micro_batch_size * job.gradient_accumulation_steps, job.gradient_accumulation_steps
        trainer.args = SimpleNamespace(
            batch_size=rows, local_batch_size=rows, per_device_train_batch_size=job.micro_batch_size,
            local_mini_batch_size=rows, num_mini_batches=1,
            gradient_accumulation_steps=steps, num_total_batches=UPDATES, num_ppo_epochs=1,
            local_rollout_forward_batch_size=job.rollout_batch_size, temperature=0.7, kl_coef=0.05, kl_estimator="k1",
            response_length=job.sequence_length - (job.prompt_length or 1), whiten_rewards=False, gamma=1.0, lam=0.95,
            cliprange=0.2, cliprange_value=0.2, vf_coef=0.1, missing_eos_penalty=None, ds3_gather_for_generation=True,
            total_episodes=rows, logging_steps=None, eval_steps=None, save_steps=None, num_sample_generations=0,
            **self.options,
        )  # fmt: skip
        trainer.accelerator, trainer.model, trainer.optimizer = accelerator, model, optimizer
        trainer.processing_class = SimpleNamespace(pad_token_id=0, eos_token_id=1)
        control = SimpleNamespace(should_save=False)
        trainer.state = SimpleNamespace(global_step=0, episode=0)
        trainer.control = control
        kept: Callable[..., Any] = lambda *_: control  # noqa: E731
        names = "on_train_begin", "on_step_end", "on_save", "on_train_end"
        trainer.callback_handler = SimpleNamespace(**dict.fromkeys(names, kept))
        trainer.lr_scheduler = SimpleNamespace(step=lambda: None, get_last_lr=lambda: [0.0])
        trainer.log = lambda metrics: None
        trainer.train_dataset_len = rows
        trainer.stop_token_id = trainer.ref_adapter_name = trainer.model_adapter_name = None
        trainer.is_peft_model = job.method != "full"
        trainer.is_deepspeed_enabled = trainer.is_fsdp_enabled = False
        return trainer

    @contextmanager
    def _phases(self, module: Any, trainer: Any, value: nn.Module) -> Iterator[None]:
        """Inside, the trainer's functions enter the phases."""
        tracker = self.tracker
        forward, get_reward, generation = module.forward, module.get_reward, module.batch_generation

        def generated(*given: Any) -> Any:
            tracker.enter("generation")
            found = generation(*given)
            tracker.enter("scoring")
            return found

        def entered(*given: Any) -> Any:
            tracker.enter("forward" if torch.is_grad_enabled() else "scoring")
            return forward(*given)

        def rewarded(model: Any, *given: Any) -> Any:
            tracker.enter("scoring" if model is value else "reward")
            return get_reward(model, *given)

        accelerator, optimizer = trainer.accelerator, trainer.optimizer
        backward, step = accelerator.backward, optimizer.step

        def entered_backward(*given: Any, **options: Any) -> Any:
            tracker.enter("backward")
            return backward(*given, **options)

        def entered_step() -> Any:
            tracker.enter("optimizer" if accelerator.sync_gradients else "forward")
            return step()

        accelerator.backward, optimizer.step = entered_backward, entered_step
        names = {"batch_generation": generated, "forward": entered, "get_reward": rewarded, "empty_cache": lambda: None}
        with ExitStack() as stack:
            for name, one in names.items():
                stack.enter_context(patch.object(module, name, one))
            unwrapped = nullcontext(accelerator.unwrap_model(trainer.model))
            stack.enter_context(patch.object(module, "unwrap_model_for_generation", lambda *_, **__: unwrapped))
            yield
