"""NeMo Automodel: ``automodel FILE`` and the YAML of its fine-tuning recipe (0.5.0, recipes/llm/train_ft.py).

On one GPU, and under DDP, its step is modelled: the model in the dtype of its checkpoint without autocast, fp32
cross-entropy on all logits, and a loop that keeps the model's outputs until backward is over. Its own Llama, Qwen2 and
Qwen3, traced with transformers' norms, agree within 0.01 % of the allocated bytes; the compiled norms of the former two
keep their input and one number of each token, as Liger's do (components/models/common/utils.py).
FSDP2 is not: it reduces gradients in fp32 and keeps the last layer gathered (components/distributed/config.py).
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.framework import Framework
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, resolve_version
from vramplan.frameworks.readers.nemo_automodel_model import (
    COMPILED_NORMS,
    OWN_TYPES,
    adapters,
    model_name,
    model_type,
    optimizer,
    weight_dtype,
)
from vramplan.frameworks.readers.trainer_arguments import num_launched_processes
from vramplan.frameworks.settings import FALSE, TRUE, ConfigReader
from vramplan.units import divisors

PACKAGE, NEWEST = "nemo-automodel", "0.5.0"
RECIPE = "TrainFinetuneRecipeForNextTokenPrediction"
OTHER_DATA = (
    "dataset", "validation_dataset", "validation_dataloader", "dataloader", "checkpoint", "wandb", "mlflow", "comet",
    "dist_env", "rng", "lr_scheduler", "clip_grad_norm", "ci", "logger", "benchmark", "seed", "nvtx",
)  # fmt: skip
"""Sections of which no further key changes memory in training."""
BUCKETS = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")
"""Settings of DDP that change its buckets of gradients."""
DEGREES = ("tp_size", "cp_size", "pp_size", "ep_size")
BUDGET = "packed_sequence.packed_sequence_size"
LOSS = "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a NeMo Automodel recipe."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    _refuse_recipe(config)
    refuse_unmodelled(config)
    for name in DEGREES:
        if config.integer(f"distributed.{name}", default=1) > 1:
            raise config.unsupported(f"distributed.{name}")
    if config.boolean("compile.enabled", default=False):
        config.note("warning", "compile.enabled", "compiled layers keep less than is counted here")
    processes = num_launched_processes(config, num_gpus)
    batch = config.integer("step_scheduler.local_batch_size", default=1)
    kind = "" if config.boolean("model.force_hf", default=False) else model_type(config)
    own = kind in OWN_TYPES
    job: dict[str, Any] = {
        "loop": "plain",
        "keeps_outputs": True,
        "method": "full",
        "micro_batch_size": batch,
        "gradient_accumulation_steps": _accumulation(config, batch, processes),
        "dtype": weight_dtype(config),
        "autocast": "none",
        "optimizer": optimizer(config),
        "num_gpus": processes,
        "strategy": "ddp",
        **_rows(config, own),
    }
    job["checkpointing"] = _checkpointing(config, own, processes)
    job |= adapters(config, job["dtype"])
    if kind in COMPILED_NORMS:
        job["fused_kernels"] = ("rms_norm",)
        config.note("default", "", "its own layers are estimated by transformers', its compiled norms by Liger's")
    elif own:
        config.note("default", "", "its own layers are estimated by transformers'")
    elif config.boolean("model.use_liger_kernel", default=True):
        config.note("warning", "model.use_liger_kernel", "no Liger is counted: with it installed, less is needed")
    _check_loss(config)
    _refuse_sharding(config, job)
    for name, default in (("local_batch_size", 1), ("global_batch_size", 32)):
        if not config.has(f"step_scheduler.{name}"):
            config.note("default", f"step_scheduler.{name}", f"not set: {default}")
    config.read_keys |= {key for key in config.source.settings if key.partition(".")[0] in OTHER_DATA}
    names = _names(config, batch * job["gradient_accumulation_steps"] * processes, processes)
    parsed = ParsedConfig(PACKAGE, f"{version} ({where})", model_name(config), job, names, config.notes)
    if "sequence_length" in job:
        parsed.rows = "packed"
        parsed.drops_longer = job["batches"] == "padded"
    if config.has("step_scheduler.val_every_steps") and config.has("validation_dataset._target_"):
        parsed.eval_batch_size = config.integer("validation_dataloader.batch_size", default=batch)
    return parsed


def _names(config: ConfigReader, global_batch: int, processes: int) -> dict[str, KeyNames]:
    """Its keys; the accumulation is what is left of the global batch."""
    steps = dict.fromkeys(divisors(global_batch // processes), f"step_scheduler.global_batch_size {global_batch}")
    names: dict[str, KeyNames] = {
        "micro_batch_size": "step_scheduler.local_batch_size",
        "gradient_accumulation_steps": steps,
        "optimizer": {"adamw_torch_fused": "optimizer._target_ torch.optim.AdamW; optimizer.fused true"},
        "method": {"lora": "peft._target_ nemo_automodel.components._peft.lora.PeftConfig"},
    }
    return names | ({"sequence_length": BUDGET} if config.has(BUDGET) else {})


def _refuse_recipe(config: ConfigReader) -> None:
    """Refuse recipes other than the fine-tuning of a causal language model."""
    name = "recipe._target_" if config.has("recipe._target_") else "recipe"
    recipe = config.string(name)
    if recipe is not None and recipe.rpartition(".")[2] != RECIPE:
        raise config.unsupported(name, f"is not read yet; read: {RECIPE}")


def _accumulation(config: ConfigReader, batch: int, processes: int) -> int:
    """global_batch_size / (local_batch_size x GPUs), as its StepScheduler divides them.

    Raises:
        ConfigError: if they do not divide.
    """
    if config.has("dataloader.batch_size"):
        raise config.unsupported("dataloader.batch_size", "beside step_scheduler.local_batch_size is not read yet")
    global_batch = config.integer("step_scheduler.global_batch_size", default=32)
    if global_batch % (batch * processes):
        raise ConfigError(
            f"{config.place('step_scheduler.global_batch_size')}: step_scheduler.global_batch_size {global_batch} is no"
            f" multiple of step_scheduler.local_batch_size {batch} x {processes} GPUs: NeMo Automodel stops at that"
        )
    return global_batch // (batch * processes)


def _rows(config: ConfigReader, own: bool) -> dict[str, Any]:
    """What a micro-batch holds: samples padded to the longest, or packs of a budget of tokens.

    Packs in the form "thd" go through its own models without padding and cache; "neat" ones carry a mask.
    """
    attention = config.lowercase("model.attn_implementation", default="")
    if attention not in ("", "sdpa", "eager", "flash_attention_2"):
        raise config.unsupported("model.attn_implementation", "is not modelled yet; modelled: flash_attention_2, sdpa")
    job = {"batches": "padded", "attention": "flash" if attention == "flash_attention_2" else attention or "sdpa"}
    budget = config.integer(BUDGET, default=0, least=0)
    if not budget:
        config.read_keys |= {key for key in config.source.settings if key.startswith("packed_sequence.")}
        _note_attention(config, attention)
        return job
    strategy = config.lowercase("packed_sequence.packing_strategy", default="thd")
    for name in ("max_packs", "prepacked", "num_proc", "drop_long_samples", "split_across_pack"):
        config.read_keys.add(f"packed_sequence.{name}")
    if strategy not in ("thd", "neat"):
        raise config.invalid(("packed_sequence.packing_strategy",), "thd or neat")
    if strategy == "thd" and not own:
        raise config.unsupported(
            "packed_sequence.packing_strategy",
            "thd is modelled for its own Llama, Qwen2 and Qwen3 alone; others: packing_strategy: neat",
        )
    if strategy == "thd":
        text = "thd packs go through TransformerEngine's attention, which is counted as FlashAttention"
        config.note("default", BUDGET, text)
        return {"batches": "packed", "attention": "flash", "sequence_length": budget}
    _note_attention(config, attention)
    return {**job, "sequence_length": budget}


def _note_attention(config: ConfigReader, attention: str) -> None:
    if not attention:
        text = "not set: sdpa is counted; with flash-attn installed it is flash_attention_2, which may keep more"
        config.note("doubt", "model.attn_implementation", text)


def _checkpointing(config: ConfigReader, own: bool, processes: int) -> str:
    """Whole layers of transformers' models on one GPU; elsewhere each layer's attention, MLP and norms by themselves.

    (components/distributed/activation_checkpointing.py: apply_submodule_checkpointing; ddp.py, fsdp2.py: parallelize.)
    """
    name = "distributed.activation_checkpointing"
    mode = config.lowercase(name, default="false")
    if mode in (*FALSE, "none", "disabled"):
        return "none"
    if mode not in (*TRUE, "full", "enabled") or own or processes > 1:
        raise config.unsupported(
            name,
            "checkpoints parts of each layer, which is not modelled yet; modelled: false, and on one GPU true with"
            " transformers' layers (model.force_hf: true)",
        )
    return "full"


def _check_loss(config: ConfigReader) -> None:
    """Refuse losses other than fp32 cross-entropy on all logits."""
    if not config.has("loss_fn._target_") and not config.has("loss_fn"):
        raise ConfigError(f"{config.source.where}: loss_fn._target_ is not set; NeMo Automodel stops without it")
    name = "loss_fn._target_" if config.has("loss_fn._target_") else "loss_fn"
    target = config.string(name) or ""
    if target != LOSS:
        loss = LOSS.rpartition(".")[2]
        raise UnsupportedError(f"{config.place(name)}: {name} {target} is not modelled yet; modelled: {loss}")
    config.read_keys.add("loss_fn.ignore_index")
    if not config.boolean("loss_fn.fp32_upcast", default=True):
        raise config.unsupported("loss_fn.fp32_upcast", "is not modelled yet; modelled: true")


def _refuse_sharding(config: ConfigReader, job: dict[str, Any]) -> None:
    """Refuse all but DDP on several GPUs; on one GPU nothing is sharded, whatever the strategy."""
    strategy = config.lowercase("distributed.strategy", default="fsdp2")
    if strategy not in ("fsdp2", "ddp"):
        raise config.unsupported("distributed.strategy", "is not modelled yet; modelled: ddp, and fsdp2 on one GPU")
    if job["num_gpus"] == 1:
        return
    if strategy == "ddp":
        for name in BUCKETS:
            config.require_off(f"distributed.{name}")
        return
    near = {**job, "strategy": "fsdp", "autocast": "bf16"}
    raise UnsupportedError(
        f"{config.place('distributed.strategy')}: {job['num_gpus']} GPUs: distributed.strategy fsdp2 reduces gradients"
        " in fp32 and keeps the last layer gathered, which is not modelled yet; modelled: ddp, and one GPU; nearest,"
        f" with accelerate's FSDP: {estimate_command(model_name(config), near)}"
    )


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(
        ("automodel",),
        ("automodel", "finetune", "llm"),
        ("nemo_automodel.cli.app",),
        ("nemo_automodel/recipes/llm/train_ft.py",),
        ("llm_finetune/finetune.py",),
    ),
    unread_commands={
        ("automodel", "finetune", "vlm"): "fine-tuning of vision-language models",
    },
    marks=frozenset({"step_scheduler", "packed_sequence", "dist_env"}),
    in_sections=True,
    file_keys=("config", "c"),
)
