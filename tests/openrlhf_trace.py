"""OpenRLHF's own supervised and DPO trainers on fake tensors (see `tests.openrlhf_runs`, which says what it needs).

Its trainers' loops, its Actor and its log-probabilities are the real ones; DeepSpeed's engine is the model itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.trl_trace import MaskFakes
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
from vramplan.torch_backend.trace.host_reads import HostReads
from vramplan.torch_backend.trace.storage_tracker import StorageTracker

aten = torch.ops.aten
STEPS = 3


class CrossEntropy(torch.autograd.Function):
    """What flash-attn 2.8.3 allocates and saves (ops/triton/cross_entropy.py: CrossEntropyLoss)."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        losses, lse, z_losses = (torch.empty(logits.shape[0]) for _ in range(3))
        ctx.save_for_backward(logits, lse, labels)
        ctx.mark_non_differentiable(z_losses)
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0]), None


def load(folder: Path) -> SimpleNamespace:
    """OpenRLHF's classes from the unpacked package in `folder`, beside stand-ins for flash-attn's functions."""
    sys.path.insert(0, str(folder))
    unused = dict.fromkeys(("index_first_axis", "pad_input", "rearrange", "unpad_input", "all_gather"))
    stubs: dict[str, dict[str, Any]] = {
        "flash_attn": {}, "flash_attn.utils": {}, "flash_attn.ops": {}, "flash_attn.ops.triton": {},
        "flash_attn.bert_padding": unused, "flash_attn.utils.distributed": unused,
        "flash_attn.ops.triton.cross_entropy": {"cross_entropy_loss": CrossEntropy.apply},
    }  # fmt: skip
    for name in ("openrlhf.utils", "openrlhf.trainer"):
        stubs[name] = {"__path__": [str(folder / name.replace(".", "/"))]}
    for name, values in stubs.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update({"__path__": [], **values})
        sys.modules[name] = module
    from openrlhf.models import Actor, DPOLoss, PairWiseLoss, SFTLoss
    from openrlhf.models.model import _get_reward_model
    from openrlhf.trainer import dpo_trainer, rm_trainer, sft_trainer

    sft_trainer.iter_grad_accum_global_norm = lambda window, *_: ((one, {"batch_num_tokens": 1.0}) for one in window)
    return SimpleNamespace(
        Actor=Actor,
        reward_class=_get_reward_model,
        losses={"dpo": lambda: DPOLoss(0.1), "reward": PairWiseLoss, None: SFTLoss},
        trainers={
            "dpo": dpo_trainer.DPOTrainer, "reward": rm_trainer.RewardModelTrainer, None: sft_trainer.SFTTrainer
        },
    )  # fmt: skip


class Numbers(HostReads):
    """The loops read back numbers for their logs: any does."""

    def answer(self, func: Any, args: Any, module: Callable[[], str]) -> Any:
        """The result of an operation that needs data."""
        answered = super().answer(func, args, module) if args[0].dtype is torch.bool else NotImplemented
        if answered is NotImplemented and func is aten._local_scalar_dense.default:
            return 1.0
        return answered


class OnHost:
    """A tensor of the data loader, which `to` copies to the GPU."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def squeeze(self, dim: int) -> OnHost:
        """As it has no dimension of one."""
        return self

    def to(self, device: Any) -> torch.Tensor:
        return torch.ones(self.shape, dtype=torch.int64)


class Loader(list[Any]):
    """The batches of an epoch."""

    sampler = None


class Strategy:
    """DeepspeedStrategy on one GPU, whose engine is the model."""

    ring_attn_group = None

    def __init__(self, tracker: StorageTracker, job: Job) -> None:
        self.tracker, self.accumulated_gradient = tracker, job.gradient_accumulation_steps
        self.micro_steps = 0

    def is_rank_0(self) -> bool:
        return False

    def backward(self, loss: torch.Tensor, *_: Any) -> None:
        """The engine's backward."""
        self.tracker.enter("backward")
        loss.backward()

    def optimizer_step(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """The engine's step, which updates at the boundary of accumulation."""
        self.micro_steps += 1
        if self.micro_steps % self.accumulated_gradient == 0:
            self.tracker.enter("optimizer")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def get_grad_norm(self, model: nn.Module) -> float:
        return 0.0

    def all_reduce(self, values: Any) -> Any:
        return values


class OpenRlhfRun:
    """One tracked run of a trainer."""

    def __init__(self, classes: SimpleNamespace, spec: ModelSpec, job: Job, gpu: Gpu) -> None:
        self.classes, self.spec, self.job, self.gpu = classes, spec, job, gpu
        self.fakes = MaskFakes(job.sequence_length)
        self.tracker = StorageTracker(self.fakes, Numbers(job, spec.name).answer, gpu)
        self.fakes.tracker = self.tracker

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        tracker, job = self.tracker, self.job
        with quiet(), as_cuda(self.gpu), tensors_in_lists(), ExitStack() as stack:
            actor = self._actor(True)
            reference = self._actor(False) if job.task == "dpo" else None
            recipe = optimizers.recipe(job)
            with self.fakes.mode:
                tracker.sums.calibrate(tracker)
                tracker.enter("loaded")
                for one in (actor, reference):
                    if one is not None:
                        place(one, tracker)
                whole = actor if job.task == "reward" else actor.model
                optimizer = optimizers.make(recipe, whole, job)
            trainer = self._trainer(actor, reference, optimizer)
            for one, phase in ((actor, "forward"), (reference, "reference")):
                if one is not None:
                    inner = one if job.task == "reward" else one.model
                    inner.register_forward_pre_hook(lambda *_, phase=phase: tracker.enter(phase))
                    inner.register_forward_hook(lambda *_: tracker.enter("forward"))
            stack.enter_context(tracker.modules(whole))
            stack.enter_context(self.fakes.mode)
            stack.enter_context(tracker)
            trainer.fit(trainer.args)
        timeline = tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    def _actor(self, trains: bool) -> nn.Module:
        job = self.job
        model = from_config(self.spec, job, "meta", False, nullcontext).module
        if job.task == "reward":
            model = self._reward_model(model.config)
        if job.method != "full" and trains:
            from peft import LoraConfig, get_peft_model

            model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=job.lora_rank, target_modules="all-linear", lora_dropout=0.0))
            for name, parameter in model.named_parameters():  # the engine casts them
                if "lora_" in name:
                    parameter.data = parameter.data.to(DTYPES[job.lora_dtype])
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="meta")
        model.config.use_cache = False
        if job.checkpointing == "full" and trains:
            model.gradient_checkpointing_enable({"use_reentrant": job.reentrant, "preserve_rng_state": False})
        model.global_steps = 1
        if job.task == "reward":
            return model
        actor: nn.Module = self.classes.Actor(model)
        actor.packing_samples = False
        return actor

    def _reward_model(self, config: Any) -> nn.Module:
        from transformers import AutoModel

        config.normalize_reward = False
        base = AutoModel._model_mapping[type(config)]
        with torch.device("meta"):
            made: nn.Module = self.classes.reward_class(base.__base__, base)(config).to(DTYPES[self.job.dtype])
        return made

    def _trainer(self, actor: nn.Module, reference: nn.Module | None, optimizer: Any) -> Any:
        job, never = self.job, 1 << 30
        ids = (job.micro_batch_size, job.sequence_length)
        batch: tuple[Any, ...] = (OnHost(*ids),) * 3
        if job.task is not None:
            batch = ((OnHost(*ids),) * 4) + ([1] * job.micro_batch_size,)
        trainer = object.__new__(self.classes.trainers[job.task])
        vars(trainer).update(
            model=actor,
            ref_model=reference,
            optimizer=optimizer,
            scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
            strategy=Strategy(self.tracker, job),
            tokenizer=SimpleNamespace(pad_token_id=0),
            train_dataloader=Loader([batch] * (STEPS * job.gradient_accumulation_steps)),
            eval_dataloader=None,
            loss_fn=self.classes.losses[job.task](),
            margin_loss=False,
            compute_fp32_loss=False,
            epochs=1,
            aux_loss=False,
            nll_loss=False,
            disable_ds_ckpt=True,
            save_hf_ckpt=False,
            _wandb=None,
            _tensorboard=None,
            args=SimpleNamespace(
                eval=SimpleNamespace(steps=never),
                ckpt=SimpleNamespace(save_steps=never),
                logger=SimpleNamespace(logging_steps=never),
                train=SimpleNamespace(batch_size=job.global_batch_size),
                model=SimpleNamespace(aux_loss_coef=0.0, nll_loss_coef=0.0),
            ),
        )
        return trainer
