"""verl's own actor on fake tensors (see `tests.verl_runs`, which says what it needs).

Its scoring, its loss, its update and its micro-batches are the real ones (workers/actor/dp_actor.py,
trainer/ppo/core_algos.py); the model is not sharded, and flash-attn's functions are stand-ins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import nn

from tests.verl_group import sharing
from vramplan.analytic.verl_critic import critic_job
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.verl import Critic
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import Fakes, tensors_in_lists
from vramplan.torch_backend.trace.host_reads import HostReads
from vramplan.torch_backend.trace.storage_tracker import StorageTracker

aten = torch.ops.aten
STEPS = 3


class CrossEntropy(torch.autograd.Function):
    """What flash-attn 2.8.3 allocates and saves (ops/triton/cross_entropy.py: CrossEntropyLoss)."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, in_place: bool) -> tuple[torch.Tensor, ...]:
        losses, lse, z_losses = (torch.empty(logits.shape[0], device=logits.device) for _ in range(3))
        ctx.save_for_backward(logits, lse, labels)
        ctx.mark_non_differentiable(z_losses)
        ctx.in_place = in_place
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, None, None]:
        logits = ctx.saved_tensors[0]
        return logits if ctx.in_place else torch.empty_like(logits), None, None


class Entropies(torch.autograd.Function):
    """What torch.compile's code of ``entropy_from_logits`` allocates and saves (tests/test_verl_actor.py compares)."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        rows, like = (logits.shape[0], 1), {"dtype": logits.dtype, "device": logits.device}
        highest, sums = (torch.empty(rows, device=logits.device) for _ in range(2))
        scale = torch.empty(rows, **like)
        ctx.save_for_backward(logits, highest, sums, scale)
        return torch.empty(logits.shape[0], **like)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(ctx.saved_tensors[0])


def unpad_input(values: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of samples without padding (flash_attn/bert_padding.py)."""
    indices = torch.arange(mask.numel())
    return values.reshape(-1, *values.shape[2:])[indices], indices, torch.zeros(mask.shape[0] + 1, dtype=torch.int32)


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The inverse."""
    whole = torch.zeros(batch * seqlen, *hidden_states.shape[1:], dtype=hidden_states.dtype)
    return whole.index_put((indices,), hidden_states).view(batch, seqlen, *hidden_states.shape[1:])


@contextmanager
def with_stubs() -> Iterator[None]:
    """Inside, modules are imported that import flash-attn's functions."""
    stubs: dict[str, dict[str, Any]] = {
        "flash_attn": {}, "flash_attn.ops": {}, "flash_attn.ops.triton": {},
        "flash_attn.ops.triton.cross_entropy": {
            "cross_entropy_loss": lambda logits, labels, inplace_backward=False: CrossEntropy.apply(
                logits, labels, inplace_backward
            )
        },
    }  # fmt: skip
    for name, values in stubs.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update({"__path__": [], **values})
        sys.modules[name] = module
    yield
    for name in stubs:
        del sys.modules[name]


def load(folder: Path) -> SimpleNamespace:
    """verl's actor from the unpacked package in `folder`, beside stand-ins for flash-attn's functions."""
    sys.path.insert(0, str(folder))
    with with_stubs():
        from verl.workers.actor import dp_actor
        from verl.workers.critic import dp_critic

    for module in (dp_actor, dp_critic):
        module.unpad_input, module.pad_input = unpad_input, pad_input
        module.index_first_axis = lambda values, indices: values[indices]
        module.rearrange = lambda values, _: values.reshape(-1, *values.shape[2:])
    return SimpleNamespace(actor=dp_actor.DataParallelPPOActor, critic=dp_critic.DataParallelPPOCritic)


class Numbers(HostReads):
    """Numbers are read back for logs: any does. Gradient norms are finite; no mask is all ones, or all zeros."""

    updates = False
    """Whether an optimizer step runs, which asks whether its norm is finite."""

    def answer(self, func: Any, args: Any, module: Callable[[], str]) -> Any:
        """The result of an operation that needs data."""
        if func is aten._local_scalar_dense.default:
            return self.updates if args[0].dtype is torch.bool else 1.0
        return super().answer(func, args, module)


class OnHost(NamedTuple):
    """A tensor in host memory until it is sent to the GPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def to(self, device: Any) -> torch.Tensor:
        return torch.ones(self.shape, dtype=self.dtype)


class Data:
    """Samples as a DataProto has them, in host memory until they are sent to the GPU."""

    def __init__(self, fields: dict[str, tuple[tuple[int, ...], torch.dtype]], rows: int, **info: Any) -> None:
        self.fields, self.rows, self.meta_info = fields, rows, info
        self.non_tensor_batch: dict[str, Any] = {}
        self.batch: Any = {name: OnHost((rows, *shape), dtype) for name, (shape, dtype) in fields.items()}

    def select(self, batch_keys: list[str], non_tensor_batch_keys: list[str]) -> Data:
        return Data({name: self.fields[name] for name in batch_keys}, self.rows, **self.meta_info)

    def split(self, rows: int) -> list[Data]:
        return [Data(self.fields, rows) for _ in range(self.rows // rows)]

    def to(self, device: Any) -> Data:
        sent = Data(self.fields, self.rows)
        sent.batch = {name: one.to(device) for name, one in self.batch.items()}
        return sent


@contextmanager
def backward_is_a_phase(tracker: StorageTracker) -> Iterator[None]:
    """Name the phases of a micro-batch; the critic's update is one."""
    own = torch.Tensor.backward

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if tracker.marks[-1].phase != "critic":
            tracker.enter("backward")
        own(loss, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "backward", backward):
        yield


class VerlRun:
    """One tracked run of the actor, and of the critic if the job has one."""

    def __init__(self, classes: SimpleNamespace, spec: ModelSpec, job: Job, gpu: Gpu) -> None:
        self.classes, self.spec, self.job, self.gpu = classes, spec, job, gpu
        self.fakes = Fakes()
        self.numbers = Numbers(job, spec.name)
        self.tracker = StorageTracker(self.fakes, self.numbers.answer, gpu)

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        tracker, job = self.tracker, self.job
        with quiet(), as_cuda(self.gpu), tensors_in_lists(), ExitStack() as stack:
            model = self._model(job)
            valuing = None if job.verl.critic is None else self._model(critic_job(job))
            recipe = optimizers.recipe(job)
            with self.fakes.mode:
                tracker.sums.calibrate(tracker)
                tracker.enter("loaded")
                place(model, tracker)
                if valuing is not None:
                    place(valuing, tracker)
                optimizer = optimizers.make(recipe, model, job)
                critic = None if valuing is None else self._critic(valuing, optimizers.make(recipe, valuing, job))
            actor = self._actor(model, optimizer)
            for one in (model, *([] if valuing is None else [valuing])):
                stack.enter_context(tracker.modules(one))
            stack.enter_context(sharing(self._gpus))
            stack.enter_context(backward_is_a_phase(tracker))
            stack.enter_context(self.fakes.mode)
            stack.enter_context(tracker)
            for _ in range(STEPS):
                tracker.enter("scoring")
                tokens = job.verl.scored_tokens and job.verl.scored_tokens * self._gpus
                scored = (tokens or self._samples * self._length) // self._length
                actor.compute_log_prob(
                    self._data(scored, temperature=1.0, use_dynamic_bsz=False, micro_batch_size=scored),
                    calculate_entropy=True,
                )
                if critic is not None:
                    self._value(critic)
                actor.update_policy(self._data(actor.config.ppo_mini_batch_size, temperature=1.0))
        timeline = tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    @property
    def _length(self) -> int:
        """Tokens of a sample: four of them fill the row of a micro-batch without padding."""
        return self.job.row_length // (1 if self.job.batches == "padded" else 4)

    @property
    def _gpus(self) -> int:
        """GPUs that share the tokens."""
        return self.job.verl.sequence_parallel

    @property
    def _samples(self) -> int:
        """Samples of a micro-batch."""
        return self.job.micro_batch_size if self.job.batches == "padded" else 4

    def _data(self, rows: int, scored: tuple[str, str] = ("old_log_probs", "advantages"), **info: Any) -> Data:
        length, prompt = self._length, self.job.prompt_length or 0
        answer = length - (prompt if self.job.batches == "padded" else length // 4)
        whole = dict.fromkeys(("input_ids", "attention_mask", "position_ids"), ((length,), torch.int64))
        answers = dict.fromkeys(("responses", "response_mask"), ((answer,), torch.int64))
        numbers = dict.fromkeys(scored, ((answer,), torch.float32))
        return Data({**whole, **answers, **numbers}, rows, **info)

    def _model(self, job: Job) -> nn.Module:
        spec = self.spec
        if job.is_verl_critic:  # workers/fsdp_workers.py: _build_critic_model_optimizer
            spec = spec.model_copy(update={"config": {**spec.config, "classifier_dropout": 0.0}})
        model: nn.Module = from_config(spec, job, "meta", False, nullcontext).module
        if job.method != "full":
            from peft import LoraConfig, get_peft_model

            model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=job.lora_rank, target_modules="all-linear"))
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.data = parameter.data.to(DTYPES[job.lora_dtype])
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="meta")
        if job.checkpointing == "full":
            model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        return model

    def _actor(self, model: nn.Module, optimizer: Any) -> Any:
        tracker, job = self.tracker, self.job
        config = Settings(
            use_remove_padding=job.batches != "padded", use_fused_kernels=False,
            ulysses_sequence_parallel_size=self._gpus, use_torch_compile=False,
            entropy_from_logits_with_chunking=False, entropy_checkpointing=False, fsdp_config=Settings(),
            use_kl_loss=False, ppo_epochs=1, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=self._samples,
            ppo_mini_batch_size=self._samples * job.gradient_accumulation_steps, calculate_entropy=False,
            entropy_coeff=0.001 if job.verl.entropy else 0, loss_agg_mode="token-mean", policy_loss=Settings(),
            clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2,
            clip_ratio_c=3.0, grad_clip=1.0, global_batch_info={},
        )  # fmt: skip
        with mock.patch("torch.distributed.get_rank", return_value=0):
            actor = self.classes.actor(config, model, optimizer)
        actor.device_name = "cpu"  # under whose key autocast of a GPU is emulated
        actor.compute_entropy_from_logits = Entropies.apply
        self._follow(actor, "optimizer")
        model.register_forward_pre_hook(lambda *_: tracker.enter("forward") if torch.is_grad_enabled() else None)
        return actor

    def _critic(self, model: nn.Module, optimizer: Any) -> Any:
        critic = self.job.verl.critic
        assert critic is not None
        rows = self._rows(critic)
        config = Settings(
            model=Settings(use_remove_padding=critic.batches != "padded"),
            ulysses_sequence_parallel_size=critic.sequence_parallel,
            ppo_epochs=1, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=rows,
            ppo_mini_batch_size=rows * critic.gradient_accumulation_steps, cliprange_value=0.5,
            loss_agg_mode="token-mean", grad_clip=1.0,
        )  # fmt: skip
        made = self.classes.critic(config, model, optimizer)
        made.device_name = "cpu"
        self._follow(made, "critic")
        return made

    def _follow(self, owner: Any, phase: str) -> None:
        """Name the phase of an optimizer step, and answer that its norm is finite."""
        own_step = owner._optimizer_step

        def step() -> Any:
            self.tracker.enter(phase)
            self.numbers.updates = True
            norm = own_step()
            self.numbers.updates = False
            return norm

        owner._optimizer_step = step

    def _rows(self, critic: Critic) -> int:
        """Samples of the critic's micro-batch."""
        return critic.micro_batch_size * critic.sequence_length * critic.sequence_parallel // self._length

    def _value(self, critic: Any) -> None:
        """Values of the samples, and the update."""
        asked = self.job.verl.critic
        assert asked is not None
        self.tracker.enter("values")
        scored = asked.scored_tokens * asked.sequence_parallel // self._length
        critic.compute_values(self._data(scored, use_dynamic_bsz=False, micro_batch_size=scored))
        self.tracker.enter("critic")
        numbers = ("values", "returns")
        critic.update_critic(self._data(critic.config.ppo_mini_batch_size, numbers))
        self.tracker.enter("forward")


class Settings(SimpleNamespace):
    """A configuration of verl."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)
