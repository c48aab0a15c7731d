"""OpenRLHF's own actor on fake tensors (see `tests.openrlhf_actor_runs`, which says what it needs).

Its scoring, its loss, its training step and its loop over micro-batches are the real ones (trainer/ray/ppo_actor.py,
models/actor.py, models/loss.py, utils/loss_utils.py); DeepSpeed's engine is the model itself, and Ray is not there.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from tests.openrlhf_trace import STEPS, OpenRlhfRun, Strategy, load
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import tensors_in_lists


def load_actor(folder: Path) -> SimpleNamespace:
    """OpenRLHF's classes, and its actor's, from the unpacked package in `folder`."""
    classes = load(folder)
    ray = ModuleType("ray")
    vars(ray).update(remote=lambda *args, **_: args[0] if args else lambda one: one)
    stubs: dict[str, dict[str, Any]] = {
        "ray": vars(ray),
        "ray.util": {},
        "ray.util.placement_group": dict.fromkeys(("PlacementGroup", "placement_group")),
        "ray.util.scheduling_strategies": {"PlacementGroupSchedulingStrategy": None},
        "openrlhf.trainer.ray": {"__path__": [str(folder / "openrlhf/trainer/ray")]},
        "openrlhf.trainer.ppo_utils": {
            "NaiveReplayBuffer": None, "__path__": [str(folder / "openrlhf/trainer/ppo_utils")]
        },
        "openrlhf.utils.deepspeed": {"DeepspeedStrategy": None},
        "openrlhf.utils.deepspeed.deepspeed_utils": dict.fromkeys(
            ("offload_deepspeed_states", "reload_deepspeed_states")
        ),
    }  # fmt: skip
    for name, values in stubs.items():
        module = ModuleType(name)
        vars(module).update({"__path__": [], **values})
        sys.modules[name] = module
    vars(sys.modules["openrlhf.utils"])["get_tokenizer"] = None
    from openrlhf.models import actor, ring_attn_utils
    from openrlhf.models.model import _get_critic_model
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ray import ppo_actor, ppo_critic
    from openrlhf.utils import loss_utils

    actor.compute_entropy = Entropies.apply
    loss_utils._optimizer_step_loss_norm = lambda *_: {"batch_num_tokens": torch.zeros(())}
    ring_attn_utils.unpad_input, ring_attn_utils.pad_input = unpad_input, pad_input
    ring_attn_utils.index_first_axis = lambda values, indices: values[indices]
    ring_attn_utils.rearrange = lambda values, _: values.reshape(-1, *values.shape[2:])
    vars(classes).update(
        modules={"actor": ppo_actor, "critic": ppo_critic}, experience=Experience, critic_class=_get_critic_model
    )
    return classes


class Entropies(torch.autograd.Function):
    """What torch.compile makes of ``compute_entropy``: three numbers for each row, and the logits, are saved.

    (torch 2.13: the partitioner of AOTAutograd; Inductor's kernels hold no logits of their own.)
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits, *(torch.empty(logits.shape[:-1]) for _ in range(3)))
        return torch.empty(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


def unpad_input(values: torch.Tensor, mask: torch.Tensor) -> tuple[Any, ...]:
    """Of samples without padding (flash_attn 2.8.3, bert_padding.py)."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.ones(mask.numel(), dtype=torch.int64)
    ends = torch.nn.functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return values.reshape(-1, *values.shape[2:])[indices], indices, ends, values.shape[1], lengths


def pad_input(values: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The inverse."""
    whole = torch.zeros(batch * seqlen, *values.shape[1:], dtype=values.dtype)
    return whole.index_put((indices,), values).view(batch, seqlen, *values.shape[1:])


class OpenRlhfActorRun(OpenRlhfRun):
    """One tracked run of the actor: rounds of scoring and of one optimizer step."""

    @property
    def trains(self) -> str:
        """The model that trains."""
        return self.job.openrlhf.trains

    @property
    def module(self) -> Any:
        """The file of its trainer."""
        return self.classes.modules[self.trains]

    def _actor(self, trains: bool) -> nn.Module:
        if self.trains == "actor":
            return super()._actor(trains)
        job, own = self.job, self.classes.reward_class
        self.classes.reward_class = self.classes.critic_class
        self.job = job.model_copy(update={"task": "reward"})
        made = super()._actor(trains)
        self.job, self.classes.reward_class = job, own
        return made

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        tracker, job = self.tracker, self.job
        with quiet(), as_cuda(self.gpu), tensors_in_lists(), ExitStack() as stack:
            actor = self._actor(True)
            actor.packing_samples = job.batches == "unpadded"
            inner = actor if self.trains == "critic" else actor.model
            if self.trains == "actor":
                actor.temperature = 0.7 if job.openrlhf.divides_logits else 1.0
            elif job.method != "full":
                actor.get_base_model().packing_samples = actor.packing_samples
            reference = self._actor(False) if job.reference == "model" else None
            recipe = optimizers.recipe(job)
            with self.fakes.mode:
                tracker.sums.calibrate(tracker)
                tracker.enter("loaded")
                place(actor, tracker)
                if reference is not None:
                    place(reference, tracker)
                    reference.packing_samples, reference.temperature = actor.packing_samples, actor.temperature
                optimizer = optimizers.make(recipe, inner, job)
            trainer = self._rl_trainer(actor, optimizer)
            inner.register_forward_pre_hook(lambda *_: tracker.enter("forward") if torch.is_grad_enabled() else None)
            stack.enter_context(tracker.modules(inner))
            stack.enter_context(mock.patch.object(self.module, "DataLoader", self._loader))
            stack.enter_context(mock.patch("torch.cuda.current_device", return_value=0))
            stack.enter_context(self.fakes.mode)
            stack.enter_context(tracker)
            for _ in range(STEPS):
                tracker.enter("scoring")
                self._score(actor)
                if reference is not None:
                    self._score(reference)
                trainer.ppo_train(*([0.01] if self.trains == "actor" else []))
        timeline = tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    def _score(self, actor: nn.Module) -> None:
        rows, length = self.job.openrlhf.scored_samples or self.job.micro_batch_size, self.job.sequence_length
        worker = SimpleNamespace(actor=actor, critic=actor, strategy=Strategy(self.tracker, self.job))
        given = (Sent((rows, length)), Sent((rows, length - 1)), Sent((rows, length)))
        group = "PolicyModelActor" if self.trains == "actor" else "CriticModelActor"
        getattr(self.module, group).forward(worker, *given)

    def _loader(self, *_: Any, **__: Any) -> list[Any]:
        """The micro-batches of an optimizer step, in host memory until they are sent."""
        job = self.job
        rows, length = job.micro_batch_size, job.sequence_length

        class OnHost(self.classes.experience):  # type: ignore[name-defined, misc]
            def to_device(self, device: Any) -> None:
                whole = {
                    name: torch.ones((rows, length), dtype=torch.int64) for name in ("sequences", "attention_mask")
                }
                answers = ("action_log_probs", "returns", "advantages")
                answers += ("values",) if job.openrlhf.trains == "critic" else ()
                answers += ("base_action_log_probs",) if job.openrlhf.kl_loss else ()
                self.action_mask = torch.ones((rows, length - 1), dtype=torch.int64)
                for name in answers:
                    setattr(self, name, torch.ones((rows, length - 1)))
                for name, value in whole.items():
                    setattr(self, name, value)

        return [OnHost() for _ in range(job.gradient_accumulation_steps)]

    def _rl_trainer(self, actor: nn.Module, optimizer: Any) -> Any:
        job, module = self.job, self.module
        strategy = Strategy(self.tracker, job)
        args = SimpleNamespace(
            train=SimpleNamespace(dynamic_batch_enable=False, max_epochs=1),
            ds=SimpleNamespace(tensor_parallel_size=1),
            actor=SimpleNamespace(entropy_coef=0.01 if job.openrlhf.entropy_loss else None, aux_loss_coef=0.0),
            algo=SimpleNamespace(kl=SimpleNamespace(use_loss=job.openrlhf.kl_loss, init_coef=0.01, estimator="k3")),
        )
        name = "ActorPPOTrainer" if self.trains == "actor" else "CriticPPOTrainer"
        losses = {"actor_loss_fn": self.classes.modules["actor"].PolicyLoss()}
        losses["critic_loss_fn"] = self.classes.modules["critic"].ValueLoss(0.5)
        trainer = object.__new__(getattr(module, name))
        vars(trainer).update(
            strategy=strategy,
            args=args,
            **{self.trains: actor, f"{self.trains}_optim": optimizer},
            **{f"{self.trains}_scheduler": SimpleNamespace(get_last_lr=lambda: [0.0])},
            ema_model=None,
            max_epochs=1,
            **losses,
            aux_loss=False,
            dataloader_pin_memory=False,
            replay_buffer=SimpleNamespace(sample_batch_size=job.micro_batch_size, collate_fn=None),
        )
        return trainer


class Sent:
    """A tensor in host memory, which `to` copies to the GPU."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def to(self, device: Any) -> torch.Tensor:
        return torch.ones(self.shape, dtype=torch.int64)
