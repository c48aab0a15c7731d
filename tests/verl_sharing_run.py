"""One rank of verl's own FSDP engines on an emulated GPU (see `tests.verl_sharing`, which starts it).

The actor, its reference and its critic are the engines of verl 0.9.1 (workers/engine/fsdp/transformer_impl.py) with its
losses; what reads a folder, flash-attn's functions and torch.compile are stand-ins.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn

from tests.recorded_runs import job_of, model_of
from tests.trl_sharing_run import Peaks
from tests.verl_trace import Entropies, Settings, with_stubs
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.trace import flash_attn_stub
from vramplan.units import MiB

STEPS = 3
TEMPERATURE = 1.0


def engines() -> Any:
    """The module of verl's engines, beside stand-ins."""
    with with_stubs():
        importlib.import_module("verl.utils.experimental.torch_functional")  # which asks for flash-attn, too
        from verl.models.transformers import monkey_patch
        from verl.workers.engine.fsdp import transformer_impl
    monkey_patch.is_trl_available = lambda: False  # whose model with a value head is in trl up to 0.28
    transformer_impl.FSDPCheckpointManager = mock.MagicMock()
    return transformer_impl


class Run:
    """The engines of a job, and what they do in a step."""

    def __init__(self, spec: ModelSpec, job: Job, options: dict[str, Any]) -> None:
        self.job, self.options, self.module = job, options, engines()
        self.peaks = Peaks()
        self.config = self.configuration(spec)
        self.length, self.fused = job.sequence_length, job.verl.fused_head
        self.peaks.enter("loaded")
        self.reference = self.engine(False) if job.reference == "model" else None
        self.critic = self.engine(True, "value_model") if job.verl.critic is not None else None
        self.actor = self.engine(True)
        torch.cuda.empty_cache()

    def configuration(self, spec: ModelSpec) -> Any:
        """The model's configuration, as read from its folder."""
        from transformers import AutoConfig

        config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
        config._attn_implementation = "flash_attention_2"
        config.architectures = spec.config.get("architectures") or ["LlamaForCausalLM"]
        return config

    @property
    def removes_padding(self) -> bool:
        """Whether the samples of a micro-batch are one row."""
        return self.job.batches != "padded"

    def engine(self, trains: bool, model_type: str = "language_model") -> Any:
        """An engine, initialized as its worker does."""
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForTokenClassification
        from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig

        job, critic = self.job, self.job.verl.critic
        own: Any = critic if model_type == "value_model" else job.verl
        of_reference = job.verl.reference_sequence_parallel or job.verl.sequence_parallel
        settings = {
            "strategy": "fsdp2" if job.fsdp.version == 2 else "fsdp",
            "model_dtype": (critic.dtype if critic is not None and own is critic else job.dtype) if trains else "bf16",
            "param_offload": trains and own.param_offload,
            "optimizer_offload": trains and own.optimizer_offload,
            "offload_policy": trains and job.offload == "all",
            "reshard_after_forward": job.fsdp.reshard_after_forward,
            "forward_prefetch": job.fsdp.forward_prefetch,
            "use_no_sync_for_gradient_accumulation": not job.fsdp.sync_each_batch,
            "forward_only": not trains,
            "ulysses_sequence_parallel_size": own.sequence_parallel if trains else of_reference,
            "use_torch_compile": False,
            "use_dynamic_bsz": False,
            **self.options.get("engine", {}),
        }
        lora = job.lora_rank if job.method == "lora" and model_type == "language_model" and trains else 0
        model = Settings(
            hf_config=self.config, model_type=model_type, local_path="", trust_remote_code=False, lora_rank=lora,
            lora_alpha=16, target_modules="all-linear", target_parameters=None, exclude_modules=self.excluded,
            lora={}, use_remove_padding=self.removes_padding, use_fused_kernels=self.fused is not None, use_liger=False,
            fused_kernel_options={"impl_backend": self.fused}, enable_activation_offload=False,
            enable_gradient_checkpointing=(own if own is critic else job).checkpointing == "full",
            get_processor=lambda: None,
        )  # fmt: skip
        optimizer = FSDPOptimizerConfig(lr=1e-6, total_training_steps=10, clip_grad=1.0)
        name = "FSDPEngineWithValueHead" if model_type == "value_model" else "FSDPEngineWithLMHead"
        made = getattr(self.module, name)(model, FSDPEngineConfig(**settings), optimizer, SimpleNamespace())
        made.compute_entropy_from_logits = Entropies.apply
        with contextlib.ExitStack() as stack:
            if job.verl.shares_columns:  # as verl 0.6 and 0.7 do (workers/fsdp_workers.py)
                stack.enter_context(mock.patch.object(self.module, "apply_fsdp2", sharing_columns))
            for kind in (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForTokenClassification):
                stack.enter_context(mock.patch.object(kind, "from_pretrained", functools.partial(from_config, kind)))
            made.initialize()
        return made

    excluded: str | None = None
    """Modules without adapters."""

    def inputs(self, samples: int) -> dict[str, Any]:
        """What the model is given of so many samples."""
        ids = [torch.full((self.length,), 3 + torch.distributed.get_rank())] * samples
        positions = [torch.arange(self.length)] * samples
        made = {"input_ids": ids, "position_ids": positions}
        return {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in made.items()}

    def data(self, samples: int, micro_batch: int) -> Any:
        """As the trainer sends it."""
        from verl.utils import tensordict_utils as tu

        prompt = self.job.prompt_length or self.length // 4
        answer = self.length - prompt

        def nested(value: int, size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.nested.as_nested_tensor(
                [torch.full((size,), value, dtype=dtype)] * samples, layout=torch.jagged
            )

        tensors = {
            **self.inputs(samples),
            "prompts": nested(3, prompt),
            "responses": nested(3, answer),
            "response_mask": nested(1, answer),
            "loss_mask": nested(1, answer if self.job.task else self.length),
            **{name: nested(0, answer, torch.float32) for name in ("old_log_probs", "advantages", "values", "returns")},
        }
        return tu.get_tensordict(
            tensors,
            {
                "temperature": TEMPERATURE, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": micro_batch,
                "use_remove_padding": self.removes_padding, "use_fused_kernels": self.fused is not None,
                "global_batch_size": samples, "calculate_entropy": False,
            },
        )  # fmt: skip

    def score(self, engine: Any, samples: int, **info: Any) -> None:
        """``infer_batch`` of a worker."""
        from verl.utils import tensordict_utils as tu

        data = self.data(samples, samples)
        for name, value in info.items():
            tu.assign_non_tensor(data, **{name: value})
        with engine.eval_mode():
            engine.infer_batch(data)

    def update(self, engine: Any, loss: Any, micro_batch: int, steps: int, entropy: bool = False) -> None:
        """``train_mini_batch`` of a worker."""
        from verl.utils import tensordict_utils as tu

        data = self.data(micro_batch * steps, micro_batch)
        tu.assign_non_tensor(data, calculate_entropy=entropy)
        with engine.train_mode():
            engine.train_batch(data, loss)

    def send(self) -> None:
        """``update_weights`` but for vLLM: one weight after another, beside a bucket."""
        torch.cuda.empty_cache()
        weights, _ = self.actor.get_per_tensor_param(layered_summon=self.job.verl.layered_summon, base_sync_done=True)
        bucket = torch.empty(self.job.verl.bucket_mib * MiB, dtype=torch.uint8, device="cuda")
        weight = None  # FSDP 1 hands on no adapters of this PEFT
        for _name, weight in weights:
            bucket[:1].copy_(weight.view(-1)[:1].view(torch.uint8)[:1])
        del bucket, weights, weight
        if self.actor.is_param_offload_enabled:
            self.actor.to("cpu", model=True, optimizer=False, grad=False)
        torch.cuda.empty_cache()

    def go(self) -> dict[str, int]:
        """The peaks of some steps."""
        from verl.workers.utils.losses import ppo_loss, sft_loss, value_loss

        job, enter = self.job, self.peaks.enter
        config = Settings(
            clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean",
            loss_scale_factor=None, policy_loss=Settings(), use_kl_loss=False, entropy_coeff=0.001,
            global_batch_info={}, cliprange_value=0.5,
        )  # fmt: skip
        losses = [functools.partial(loss, config) for loss in (ppo_loss, value_loss)]
        scored = (job.verl.scored_tokens or self.length * job.micro_batch_size) // self.length
        observe(self.actor, self.peaks)
        for _ in range(STEPS if job.task is None else 0):
            enter("forward")
            supervised = functools.partial(sft_loss, config)
            self.update(self.actor, supervised, job.micro_batch_size, job.gradient_accumulation_steps)
        if job.task is None:
            enter("over")
            return self.peaks.found
        for _ in range(STEPS):
            enter("generation")
            self.send()
            enter("scoring")
            self.score(self.actor, scored, calculate_entropy=True)
            if self.reference is not None:
                enter("reference")
                self.score(self.reference, scored)
            critic = job.verl.critic
            if critic is not None:
                enter("values")
                self.score(self.critic, critic.scored_tokens // self.length)
                enter("critic")
                rows = critic.micro_batch_size * critic.sequence_length // self.length
                self.update(self.critic, losses[1], rows, critic.gradient_accumulation_steps)
            enter("forward")
            rows, steps = job.micro_batch_size, job.gradient_accumulation_steps
            self.update(self.actor, losses[0], rows, steps, job.verl.entropy)
        enter("over")
        return self.peaks.found


def sharing_columns(model: nn.Module, settings: dict[str, Any], config: Any) -> None:
    """``apply_fsdp2`` of weights whose columns are shared where GPUs do not divide their rows."""
    from verl.utils.fsdp_utils import apply_fsdp2, get_shard_placement_fn

    placement = get_shard_placement_fn(fsdp_size=torch.distributed.get_world_size())
    apply_fsdp2(model, {**settings, "shard_placement_fn": placement}, config)


def from_config(cls: Any, *_: Any, config: Any, torch_dtype: torch.dtype, **__: Any) -> nn.Module:
    """``from_pretrained`` of a class of models, with weights of any value."""
    made: nn.Module = cls.from_config(config, dtype=torch_dtype)
    return made


def observe(engine: Any, peaks: Peaks) -> None:
    """Enter phases: the forward of an update, its backward, the optimizer's step."""
    backward, forward, step = torch.Tensor.backward, engine.forward_step, engine.optimizer_step

    def tensor_backward(*args: Any, **kwargs: Any) -> None:
        if peaks.phase != "critic":
            peaks.enter("backward")
        backward(*args, **kwargs)

    def forward_step(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            peaks.enter("forward")
        return forward(*args, **kwargs)

    def optimizer_step() -> Any:
        peaks.enter("optimizer")
        return step()

    torch.Tensor.backward = tensor_backward
    engine.forward_step, engine.optimizer_step = forward_step, optimizer_step


def main(kind: type[Run] = Run) -> int:
    """Run the row that is given, and print rank 0's peaks."""
    row = json.loads(sys.argv[1])
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
    with contextlib.ExitStack() as stack:
        stack.enter_context(flash_attn_stub.installed())
        found = kind(model_of(row), job_of(row), row.get("options", {})).go()
    if rank == 0:
        print("PEAKS " + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
