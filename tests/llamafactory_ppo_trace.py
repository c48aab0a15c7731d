"""LLaMA-Factory's PPO on fake tensors: what CustomPPOTrainer and TRL 0.9.6, which it requires, do behind a generation.

Their methods are the real ones, taken from the files of both packages; what they need of the rest is a few lines here.
"""

from __future__ import annotations

import ast
import math
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from tests.helpers import spec_of
from tests.trl_trace import Answers, MaskFakes, _called_by_trl
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
CORE = (
    "clip_by_value", "entropy_from_logits", "flatten_dict", "logprobs_from_logits", "masked_mean", "masked_var",
    "masked_whiten", "stack_dicts",
)  # fmt: skip
METHODS = (
    "step", "compute_rewards", "_kl_penalty", "compute_advantages", "train_minibatch", "loss",
)  # fmt: skip
ROUNDS = 2
"""Calls of step: optimizer states exist in the second."""


def load(trl: Path, llamafactory: Path) -> dict[str, Any]:
    """The code of both packages: a trainer's methods, the value head, the model's forward."""
    scope: dict[str, Any] = {
        "torch": torch, "nn": nn, "F": nn.functional, "math": math, "time": time, "np": numpy, "warnings": warnings,
        "Mapping": Mapping, "WANDB_PADDING": -1, "pad_sequence": pad_sequence, "torch_gc": lambda: None,
        "stats_to_np": lambda stats: stats, "convert_to_scalar": lambda stats: stats,
        "override": lambda function: function,
        "unwrap_model_for_generation": lambda *_: nullcontext(),
    }  # fmt: skip
    exec("from typing import *", scope)
    _define(trl / "core.py", CORE, scope)
    core = ModuleType("trl.core")
    core.logprobs_from_logits = scope["logprobs_from_logits"]  # type: ignore[attr-defined]
    sys.modules["trl.core"] = core
    _define(trl / "models/modeling_value_head.py", ("ValueHead",), scope)
    methods = _methods(trl / "trainer/ppo_trainer.py", "PPOTrainer", METHODS, scope)
    own = ("batched_forward_pass", "get_rewards")
    methods |= _methods(llamafactory / "train/ppo/trainer.py", "CustomPPOTrainer", own, scope)
    forward = _methods(trl / "models/modeling_value_head.py", "AutoModelForCausalLMWithValueHead", ("forward",), scope)
    return {**scope, "methods": methods, "forward": forward["forward"]}


def _define(path: Path, names: tuple[str, ...], scope: dict[str, Any]) -> None:
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", "") in names]
    exec(compile(tree, f"/trl/{path.name}", "exec"), scope)


def _methods(path: Path, owner: str, names: tuple[str, ...], scope: dict[str, Any]) -> dict[str, Any]:
    found = next(node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == owner)
    functions = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name in names]  # type: ignore[attr-defined]
    for one in functions:
        one.decorator_list = [each for each in one.decorator_list if "no_grad" in ast.unparse(each)]
    own: dict[str, Any] = {}
    module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *functions], [])
    exec(compile(ast.fix_missing_locations(module), f"/trl/{path.name}", "exec"), scope, own)
    return own


class Numbers(Answers):
    """What the loops read back: no row is padded on the left, and no mask is empty."""

    def answer(self, func: Any, args: Any, module: Any) -> Any:
        """The result of an operation that needs data."""
        if func is aten._local_scalar_dense.default and _called_by_trl():
            return False if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 1
        if func is aten.nonzero.default and _called_by_trl():
            return torch.empty((args[0].shape[0], args[0].dim()), dtype=torch.int64, device=args[0].device)
        return super().answer(func, args, module)


class PpoRun:
    """One tracked run: the reward model's forward, then ``step``, twice."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu, code: dict[str, Any], epochs: int = 1) -> None:
        self.spec, self.job, self.gpu, self.code, self.epochs = spec, job, gpu, code, epochs
        self.fakes = MaskFakes(job.sequence_length - (job.prompt_length or 1))
        answers = Numbers(job, spec.name, self.fakes.answer_tokens)
        self.tracker = StorageTracker(self.fakes, answers.answer, gpu)
        self.fakes.tracker = self.tracker

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        with ExitStack() as stack:
            for one in (quiet(), as_cuda(self.gpu), tensors_in_lists()):
                stack.enter_context(one)
            self._run()
        timeline = self.tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    def _model(self, spec: ModelSpec, job: Job) -> nn.Module:
        """A model with a value head, LoRA and, if they score, the reward model's adapters."""
        from peft import LoraConfig, get_peft_model

        code = self.code
        model: Any = from_config(spec, job, "meta", False, nullcontext).module
        if job.checkpointing == "full":
            model.gradient_checkpointing_enable({"use_reentrant": job.reentrant})
            model.enable_input_require_grads()
        if job.method != "full":
            targets: Any = "all-linear" if job.lora_targets is None else list(job.lora_targets)
            config = LoraConfig(
                r=job.lora_rank, target_modules=targets, lora_dropout=job.lora_dropout, task_type="CAUSAL_LM"
            )
            with torch.device("meta"):
                model = get_peft_model(model, config)
                if job.reward_adapters:
                    model.add_adapter("reward", config)
                    model.set_adapter("default")
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.data = parameter.data.to(DTYPES[job.lora_dtype])
        wrapper = type("Policy", (nn.Module,), {"forward": code["forward"]})()
        wrapper.pretrained_model, wrapper.is_peft_model = model, False
        with torch.device("meta"):
            wrapper.v_head = code["ValueHead"](model.config)
        return wrapper

    def _run(self) -> None:
        from accelerate import Accelerator

        job, tracker = self.job, self.tracker
        recipe = optimizers.recipe(job)
        model = self._model(self.spec, job)
        mixed = "no" if job.autocast == "none" else job.autocast
        accelerator = Accelerator(
            cpu=True, mixed_precision=mixed, gradient_accumulation_steps=job.gradient_accumulation_steps
        )
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="meta")
        with self.fakes.mode:
            tracker.sums.calibrate(tracker)
            tracker.enter("loaded")
            place(model, tracker)
            reference = None
            if job.method == "full":
                reference = self._model(self.spec, job)
                place(reference, tracker)
            scores = None
            if job.reward_model is not None:
                whole = job.model_copy(update={"method": "full", "checkpointing": "none"})
                scores = self._model(spec_of(job.reward_model), whole).requires_grad_(False).eval()
                place(scores, tracker)
            optimizer = optimizers.make(recipe, model, job)
            wrapped = accelerator.prepare_model(model, device_placement=False)
            if reference is not None:
                reference = accelerator.prepare_model(reference, device_placement=False)
            if scores is not None:
                scores = accelerator.prepare_model(scores, device_placement=False, evaluation_mode=True)
        trainer = self._trainer(accelerator, wrapped, optimizer)
        trainer.ref_model, trainer.reward_model = reference, scores
        with tracker.modules(model), self.fakes.mode, tracker:
            for _ in range(ROUNDS):
                self._round(trainer, model)

    def _trainer(self, accelerator: Any, model: nn.Module, optimizer: Any) -> Any:
        job, tracker, methods = self.job, self.tracker, self.code["methods"]
        trainer: Any = type("Trainer", (), dict(methods))()
        rows = job.micro_batch_size * job.gradient_accumulation_steps
        trainer.config = SimpleNamespace(
            batch_size=rows, mini_batch_size=job.micro_batch_size, backward_batch_size=rows, ppo_epochs=self.epochs,
            use_score_scaling=False, score_clip=None, kl_penalty="kl", gamma=1.0, lam=0.95, cliprange=0.2,
            cliprange_value=0.2, vf_coef=0.1, ratio_threshold=10.0, whiten_rewards=False, early_stopping=False,
            max_grad_norm=0.5, log_with=None,
        )  # fmt: skip
        trainer.accelerator, trainer.model, trainer.lr_scheduler = accelerator, model, None
        trainer.model_params = filter(lambda p: p.requires_grad, model.parameters())
        trainer.is_distributed = trainer.is_encoder_decoder = False
        trainer.is_peft_model, trainer.current_device = job.method != "full", torch.device("cpu")
        trainer.kl_ctl = SimpleNamespace(value=0.2, update=lambda *_: None)
        trainer.amp_context = nullcontext()
        trainer.finetuning_args = SimpleNamespace(reward_model_type="full")
        trainer.record_step_stats = lambda **_: {"objective/kl": 0.0}
        trainer._step_safety_checker = lambda size, *given: given
        trainer.optional_peft_ctx = nullcontext if job.method == "full" else model.pretrained_model.disable_adapter

        def inputs(queries: Any, responses: Any) -> dict[str, torch.Tensor]:
            shape = len(queries), job.sequence_length
            return {name: torch.empty(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask")}

        trainer.prepare_model_inputs = inputs
        forward, backward = trainer.batched_forward_pass, accelerator.backward

        def entered_forward(*given: Any, **options: Any) -> Any:
            tracker.enter("forward" if torch.is_grad_enabled() else "scoring")
            return forward(*given, **options)

        def entered_backward(*given: Any, **options: Any) -> Any:
            tracker.enter("backward")
            return backward(*given, **options)

        trainer.batched_forward_pass, accelerator.backward = entered_forward, entered_backward
        waiting = {"left": job.gradient_accumulation_steps}

        class Steps:
            """The optimizer, which accelerate steps behind the last micro-batch alone."""

            param_groups = optimizer.param_groups

            def step(self) -> None:
                waiting["left"] -= 1
                if waiting["left"] == 0:
                    tracker.enter("optimizer")
                    optimizer.step()

            def zero_grad(self) -> None:
                if waiting["left"] == 0:
                    optimizer.zero_grad(set_to_none=True)
                    waiting["left"] = job.gradient_accumulation_steps

        trainer.optimizer = Steps()
        return trainer

    def _round(self, trainer: Any, model: Any) -> None:
        job = self.job
        rows, prompt = trainer.config.batch_size, job.prompt_length or 1
        # both lie on the host
        queries = [range(prompt)] * rows
        responses = [range(job.sequence_length - prompt)] * rows
        model.eval()
        if job.reward_adapters or job.reward_model is not None:
            self.tracker.enter("reward")
            if job.reward_adapters:
                model.pretrained_model.set_adapter("reward")
                trainer.reward_model = trainer.model
            for _ in range(job.gradient_accumulation_steps):
                some = trainer.config.mini_batch_size
                trainer.get_rewards(queries[:some], responses[:some])
            if job.reward_adapters:
                model.pretrained_model.set_adapter("default")
        model.train()
        self.tracker.enter("scoring")
        trainer.step(queries, responses, [0.0] * rows)
