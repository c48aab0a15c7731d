"""torchtune's own DPO recipe on fake tensors (needs torchtune 0.6.1 and torchao; see `tests.torchtune_runs`).

The recipe's class, its training loop and the builders of models are the real ones; its set-up is left out.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.trl_trace import MaskFakes
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import tensors_in_lists
from vramplan.torch_backend.trace.host_reads import HostReads
from vramplan.torch_backend.trace.storage_tracker import StorageTracker

aten = torch.ops.aten
STEPS = 3
NAMES = {"o_proj": "output_proj"}


def recipe_class() -> Any:
    """LoRADPORecipeSingleDevice."""
    package = importlib.util.find_spec("torchtune")
    assert package is not None
    assert package.origin is not None
    path = package.origin.replace("torchtune/__init__.py", "recipes/lora_dpo_single_device.py")
    spec = importlib.util.spec_from_file_location("lora_dpo_single_device", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LoRADPORecipeSingleDevice


class Numbers(HostReads):
    """The recipe reads back its loss alone: any number does."""

    def answer(self, func: Any, args: Any, module: Callable[[], str]) -> Any:
        """The result of an operation that needs data."""
        if func is aten._local_scalar_dense.default:
            return 1.0
        return super().answer(func, args, module)


class OnHost:
    """A tensor of the data loader, which `to` copies to the GPU."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def to(self, device: Any) -> torch.Tensor:
        return torch.empty(self.shape, dtype=torch.int64)


class NoSampler:
    """Shuffles nothing."""

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""


def built(spec: ModelSpec, job: Job) -> nn.Module:
    """The builders' model: Llama 3 with its norms, adapters and rotary tables, on the meta device."""
    from torchtune import training
    from torchtune.models.llama2._component_builders import lora_llama2
    from torchtune.models.llama3_2._component_builders import lora_llama3_2
    from torchtune.modules import TransformerSelfAttentionLayer
    from torchtune.modules.peft import get_adapter_params, set_trainable_params

    c = spec.config
    targets = job.lora_targets or ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj")
    sizes = {
        "lora_attn_modules": [NAMES.get(name, name) for name in targets if name[0] in "qkvo"],
        "apply_lora_to_mlp": "up_proj" in targets,
        "apply_lora_to_output": False,
        "vocab_size": c["vocab_size"],
        "num_layers": c["num_hidden_layers"],
        "num_heads": c["num_attention_heads"],
        "num_kv_heads": c["num_key_value_heads"],
        "embed_dim": c["hidden_size"],
        "intermediate_dim": c["intermediate_size"],
        "max_seq_len": 1024,
        "lora_rank": job.lora_rank,
        "lora_alpha": 16,
        "lora_dropout": job.lora_dropout,
    }
    builder = lora_llama3_2 if c.get("tie_word_embeddings") else lora_llama2
    with training.set_default_dtype(DTYPES[job.dtype]), torch.device("meta"):
        model = builder(**sizes)
    for module in model.modules():
        if hasattr(module, "rope_init"):
            module.rope_init()
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer.to("meta")
    set_trainable_params(model, get_adapter_params(model))
    if job.checkpointing == "full":
        training.set_activation_checkpointing(model, auto_wrap_policy={TransformerSelfAttentionLayer})
    return model


class TorchtuneRun:
    """One tracked run of the recipe."""

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu) -> None:
        self.spec, self.job, self.gpu = spec, job, gpu
        self.fakes = MaskFakes(job.sequence_length)
        self.tracker = StorageTracker(self.fakes, Numbers(job, spec.name).answer, gpu)
        self.fakes.tracker = self.tracker

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        from contextlib import nullcontext

        from torchtune.rlhf.loss import DPOLoss

        tracker, job = self.tracker, self.job
        with quiet(), as_cuda(self.gpu), tensors_in_lists():
            model = built(self.spec, job)
            with self.fakes.mode:
                tracker.sums.calibrate(tracker)
                tracker.enter("loaded")
                place(model, tracker)
                for module in model.modules():
                    if hasattr(module, "_cached_weight"):  # a tied head is a function of the embedding
                        module._cached_weight = None
                trained = [weight for weight in model.parameters() if weight.requires_grad]
                optimizer = torch.optim.AdamW(trained, fused=job.optimizer == "adamw_torch_fused")
            recipe = object.__new__(recipe_class())
            length = (2 * job.micro_batch_size, job.sequence_length)
            vars(recipe).update(
                _model=model,
                _model_compile=False,
                _optimizer=optimizer,
                _loss_fn=DPOLoss(),
                _lr_scheduler=None,
                _sampler=NoSampler(),
                _device=torch.device("cpu"),
                _dataloader=[(OnHost(*length), OnHost(*length))] * (STEPS * job.gradient_accumulation_steps),
                _gradient_accumulation_steps=job.gradient_accumulation_steps,
                _steps_per_epoch=STEPS,
                _log_every_n_steps=100,
                activations_handling_ctx=nullcontext(),
                epochs_run=0,
                total_epochs=1,
                max_steps_per_epoch=None,
                global_step=0,
                save_checkpoint=lambda epoch: None,
            )
            self._observe(model, optimizer)
            backward = torch.Tensor.backward

            def entered(*args: Any, **kwargs: Any) -> None:
                tracker.enter("backward")
                backward(*args, **kwargs)

            with patch.object(torch.Tensor, "backward", entered), tracker.modules(model), self.fakes.mode, tracker:
                recipe.train()
        timeline = tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    def _observe(self, model: nn.Module, optimizer: Any) -> None:
        tracker = self.tracker

        def before(module: nn.Module, inputs: Any) -> None:
            tracker.enter("forward" if torch.is_grad_enabled() else "reference")

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            tracker.enter("forward")

        model.register_forward_pre_hook(before)
        model.register_forward_hook(after)
        optimizer.register_step_pre_hook(lambda *_: tracker.enter("optimizer"))
