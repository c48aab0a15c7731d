"""One rank of a torchtune recipe on an emulated GPU (see `tests.torchtune_sharing` and `tests.torchtune_alone`).

The recipe's file, its set-up and its loop are torchtune's; weights, samples and the tokenizer's padding are made here.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.recorded_runs import job_of, model_of
from tests.trl_sharing_run import STEPS, Peaks, print_peaks
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

ADAPTED = ("q_proj", "k_proj", "v_proj", "output_proj")


def recipe_of(job: Job) -> tuple[str, str]:
    """The recipe's file and class."""
    method = "full" if job.method == "full" else "lora"
    what, class_name = ("dpo", "DPORecipe") if job.task == "dpo" else ("finetune", "FinetuneRecipe")
    where = "distributed" if job.num_gpus > 1 else "single_device"
    name = f"{'Full' if method == 'full' else 'LoRA'}{class_name}{where.title().replace('_', '')}"
    return f"{method}_{what}_{where}", name


def recipe_module(name: str) -> Any:
    """The recipe's file, which is in no package that can be imported."""
    package = importlib.util.find_spec("torchtune")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parents[1] / "recipes" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def builder(spec: ModelSpec, job: Job) -> dict[str, Any]:
    """The ``model`` of the configuration: a component builder and its sizes."""
    c = spec.config
    llama = "llama3_2" if c.get("tie_word_embeddings") else "llama3_1" if c.get("rope_scaling") else "llama2"
    family = "qwen2" if spec.model_type == "qwen2" else llama
    sizes = {
        "vocab_size": c["vocab_size"],
        "num_layers": c["num_hidden_layers"],
        "num_heads": c["num_attention_heads"],
        "num_kv_heads": c["num_key_value_heads"],
        "embed_dim": c["hidden_size"],
        "intermediate_dim": c["intermediate_size"],
        "max_seq_len": c["max_position_embeddings"],
    }
    if family == "qwen2":
        sizes |= {"tie_word_embeddings": bool(c.get("tie_word_embeddings"))}
    prefix = ""
    if job.method != "full":
        targets = job.lora_targets or ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj")
        sizes |= {
            "lora_attn_modules": ["output_proj" if one == "o_proj" else one for one in targets if one[0] in "qkvo"],
            "apply_lora_to_mlp": "up_proj" in targets,
            "lora_rank": job.lora_rank,
            "lora_alpha": 16.0,
            "lora_dropout": job.lora_dropout,
        }
        sizes |= {"quantize_base": True} if job.quantize != "none" else {}
        sizes |= {"use_dora": True} if job.method == "dora" else {}
        prefix = "lora_"
    return {"_component_": f"torchtune.models.{family}._component_builders.{prefix}{family}", **sizes}


class Checkpoint:
    """A checkpointer that reads weights of the right shapes from nowhere."""

    def __init__(self, model: dict[str, Any], **_: Any) -> None:
        self.model = dict(model)

    def load_checkpoint(self, **_: Any) -> dict[str, Any]:
        """The weights without adapters, which nothing has written."""
        from omegaconf import OmegaConf
        from torchtune import config

        name = self.model["_component_"].replace("builders.lora_", "builders.")
        left_out = ("lora", "quantize_base", "use_dora")
        base = {key: size for key, size in self.model.items() if not any(part in key for part in left_out)}
        base |= {"_component_": name}
        with torch.device("meta"):
            model = config.instantiate(OmegaConf.create(base))
        return {"model": {key: torch.empty(one.shape) for key, one in model.state_dict().items()}}

    load_base_checkpoint = load_checkpoint


def tokenizer() -> SimpleNamespace:
    """What the recipes ask a tokenizer for."""
    return SimpleNamespace(pad_id=0, max_seq_len=None)


def samples(*_: Any, count: int, length: int, pairs: bool, packed: bool = False, **__: Any) -> list[dict[str, Any]]:
    """Samples of one length, of which every token counts; packed: rows of two samples."""
    if packed:
        half = torch.tensor([length // 2, length - length // 2])
        ids, places = torch.full((length,), 5), torch.cat([torch.arange(part) for part in half.tolist()])
        return [{"tokens": ids, "labels": ids, "input_pos": places, "seq_lens": half}] * count
    names = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels") if pairs else NAMES
    return [dict.fromkeys(names, [5] * length)] * count


NAMES = ("tokens", "labels")
HERE = "tests.torchtune_sharing_run"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw_torch": {"_component_": "torch.optim.AdamW", "fused": False},
    "adamw_torch_fused": {"_component_": "torch.optim.AdamW", "fused": True},
    "adamw_torch_8bit": {"_component_": "torchao.optim.AdamW8bit"},
    "adamw_8bit": {"_component_": "bitsandbytes.optim.AdamW8bit"},
    "paged_adamw_8bit": {"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
    "paged_adamw_32bit": {"_component_": "bitsandbytes.optim.PagedAdamW"},
}


def configuration(spec: ModelSpec, job: Job, packed: bool = False) -> Any:
    """The recipe's configuration."""
    from omegaconf import OmegaConf

    folder = tempfile.mkdtemp()
    model = builder(spec, job)
    pairs = job.task == "dpo"
    count = job.num_gpus * job.micro_batch_size * job.gradient_accumulation_steps * STEPS
    losses = {"scaled_log_softmax": "rlhf.loss.DPOLoss", "sections": "modules.loss.CEWithChunkedOutputLoss"}
    loss = f"torchtune.{losses[job.loss]}" if job.loss in losses else "torch.nn.CrossEntropyLoss"
    checkpointer = {"_component_": f"{HERE}.Checkpoint", "model": model, "output_dir": folder, "model_type": "LLAMA3"}
    settings = {
        "output_dir": folder,
        "model": model,
        "tokenizer": {"_component_": f"{HERE}.tokenizer"},
        "checkpointer": checkpointer,
        "ref_checkpointer": checkpointer,
        "resume_from_checkpoint": False,
        "dataset": {
            "_component_": f"{HERE}.samples",
            "count": count,
            "length": job.sequence_length,
            "pairs": pairs,
            "packed": packed,
        },
        "seed": 1,
        "shuffle": False,
        "batch_size": job.micro_batch_size,
        "optimizer": OPTIMIZERS[job.optimizer] | {"lr": 1e-4},
        "optimizer_in_bwd": job.optimizer_in_backward,
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": 2,
        },
        "loss": {"_component_": loss},
        "epochs": 1,
        "max_steps_per_epoch": None,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "clip_grad_norm": None,
        "compile": False,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": folder},
        "log_every_n_steps": 1,
        "device": "cuda",
        "dtype": job.dtype,
        "enable_activation_checkpointing": job.checkpointing == "full",
        "enable_activation_offloading": job.offloads_activations,
        "custom_sharded_layers": ["tok_embeddings", "output"] if job.fsdp.wraps_embeddings else None,
        "fsdp_reshard_after_forward": job.fsdp.reshard_after_forward,
        "fsdp_cpu_offload": job.offload == "all",
    }
    return OmegaConf.create(settings)


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    from torchtune import training

    job, spec = job_of(row), model_of(row)
    name, class_name = recipe_of(job)
    module = recipe_module(name)
    recipe_class = getattr(module, class_name)
    config = configuration(spec, job, row.get("packed", False))
    peaks = Peaks()
    peaks.enter("loaded")
    if job.num_gpus > 1 and name != "full_finetune_distributed":  # which does so itself
        torch.distributed.init_process_group("cuda:nccl,cpu:gloo")
    recipe = recipe_class(cfg=config)
    recipe.setup(cfg=config)
    observe(recipe, peaks)

    def entering(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def entered(*args: Any, **kwargs: Any) -> Any:
            peaks.enter(phase)
            return function(*args, **kwargs)

        return entered

    nothing = lambda *_, **__: None  # noqa: E731
    client = getattr(recipe, "_checkpoint_client", recipe)
    with (
        patch.object(torch.Tensor, "backward", entering("backward", torch.Tensor.backward)),
        patch.object(training, "scale_grads", entering("optimizer", training.scale_grads)),
        patch.object(type(client), "save_checkpoint", nothing),
        patch.object(training, "cleanup_before_training", nothing),
    ):
        recipe.train()
    peaks.enter("over")
    return peaks.found


def observe(recipe: Any, peaks: Peaks) -> None:
    """Enter phases: the forward, the reference's, the optimizer's step."""

    def before(module: Any, inputs: Any) -> None:
        peaks.enter("forward" if torch.is_grad_enabled() else "reference")

    def after(module: Any, inputs: Any, output: Any) -> None:
        if peaks.phase == "reference":
            peaks.enter("forward")

    for model in (recipe._model, getattr(recipe, "_ref_model", None)):
        if model is not None:
            model.register_forward_pre_hook(before, prepend=True)
            model.register_forward_hook(after)
    if recipe._optimizer is not None:  # else each weight's, within backward
        recipe._optimizer.register_step_pre_hook(lambda *_: peaks.enter("optimizer"))


if __name__ == "__main__":
    print_peaks(run)
