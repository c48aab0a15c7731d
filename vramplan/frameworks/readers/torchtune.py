"""torchtune: ``tune run RECIPE --config FILE`` and its YAML (0.6.1; recipes/, torchtune/models).

The model's code is its own: it is estimated by transformers' class of the same model, with what torchtune's Llama,
Mistral and Qwen2 do otherwise (`layers_of`); the others are refused.
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError, setting
from vramplan.frameworks.framework import Framework, Writer
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, resolve_version
from vramplan.frameworks.readers import torchtune_command as command
from vramplan.frameworks.readers import torchtune_configs as configs
from vramplan.frameworks.readers import torchtune_recipes as recipes
from vramplan.frameworks.readers import torchtune_savings as savings
from vramplan.frameworks.readers.trainer_arguments import DTYPES
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import ConfigText, Pairs, allocator_variables, refuse_unwritable
from vramplan.inputs.catalog import find_model
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "torchtune", "0.6.1"
MODELS = {
    "llama2_7b": "meta-llama/Llama-2-7b-hf",
    "llama2_13b": "meta-llama/Llama-2-13b-hf",
    "llama2_70b": "meta-llama/Llama-2-70b-hf",
    "code_llama2_7b": "codellama/CodeLlama-7b-hf",
    "code_llama2_13b": "codellama/CodeLlama-13b-hf",
    "llama3_8b": "meta-llama/Meta-Llama-3-8B",
    "llama3_70b": "meta-llama/Meta-Llama-3-70B",
    "llama3_1_8b": "meta-llama/Llama-3.1-8B",
    "llama3_1_70b": "meta-llama/Llama-3.1-70B",
    "llama3_1_405b": "meta-llama/Llama-3.1-405B",
    "llama3_2_1b": "meta-llama/Llama-3.2-1B",
    "llama3_2_3b": "meta-llama/Llama-3.2-3B",
    "llama3_3_70b": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral_7b": "mistralai/Mistral-7B-v0.1",
    "qwen2_0_5b": "Qwen/Qwen2-0.5B",
    "qwen2_1_5b": "Qwen/Qwen2-1.5B",
    "qwen2_7b": "Qwen/Qwen2-7B",
    **{f"qwen2_5_{size}b{kind}": f"Qwen/Qwen2.5-{size.replace('_', '.')}B{hub}"
       for size in ("1_5", "7", "14", "32", "72") for kind, hub in (("_base", ""), ("_instruct", "-Instruct"))},
    "qwen2_5_0_5b": "Qwen/Qwen2.5-0.5B",
    "qwen2_5_3b": "Qwen/Qwen2.5-3B",
}  # fmt: skip
"""Builders whose layers are transformers' Llama, Mistral or Qwen2 (torchtune/models/*/_model_builders.py)."""
OWN_POSITIONS = {f"Qwen/Qwen2-{size}B": 32_768 for size in ("0.5", "1.5", "7")}
"""Positions that the builders' tables have, where the model's configuration names others."""
FAMILIES = (
    "llama3_1", "llama3_2", "llama3_3", "llama3", "llama2", "code_llama2", "mistral", "qwen2_5", "qwen2",
)  # fmt: skip
"""Modules of the builders, each name before its prefixes."""
UNMODELLED = ("gemma", "phi", "vision", "reward", "classifier", "t5", "clip", "flux")
"""Parts of the names of builders whose layers are not modelled."""
FLEX_ATTENTION = (7, 5)
"""Compute capability from which packed rows run through it (utils/_import_guard.py)."""
OPTIMIZERS = {
    "torch.optim.AdamW": "adamw_torch",
    "torch.optim.SGD": "sgd",
    "bitsandbytes.optim.AdamW8bit": "adamw_8bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.optim.PagedAdamW32bit": "paged_adamw_32bit",
    "bitsandbytes.optim.Lion8bit": "lion_8bit",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw_torch_8bit",
    "torchao.optim.AdamW8bit": "adamw_torch_8bit",
}
LOSSES = {
    "torchtune.modules.loss.CEWithChunkedOutputLoss": "sections",
    "torch.nn.CrossEntropyLoss": "standard",
}
LAYERS = {"output_proj": "o_proj", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "output": "lm_head"}
"""torchtune's names of layers -> transformers'."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "down_proj", "up_proj")
NAMES: dict[str, KeyNames] = {
    "micro_batch_size": "batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "sequence_length": "tokenizer.max_seq_len",
    "checkpointing": {"full": "enable_activation_checkpointing True"},
    "optimizer": {
        "adamw_torch_fused": "optimizer.fused True",
        "adamw_8bit": "optimizer._component_ bitsandbytes.optim.AdamW8bit",
        "sgd": "optimizer._component_ torch.optim.SGD",
    },
    "dtype": {"bf16": "dtype bf16", **dict.fromkeys(("fp16", "fp32"), "dtype fp32")},
    "lora_dropout": "model.lora_dropout",
    "offload": {"all": "fsdp_cpu_offload True"},
    "offloads_activations": {True: "enable_activation_offloading True"},
    "quantize": {"nf4": "model.quantize_base True"},
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a torchtune configuration."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    _note_shipped(config, version)
    command.refuse_texts(config)
    recipes.refuse_unread(config)
    if config.has("max_new_tokens") and not config.has("batch_size"):  # recipes/configs/generation.yaml
        raise ConfigError(
            f"{config.place('max_new_tokens')}: max_new_tokens: this configuration generates text and trains nothing;"
            " check that of the training"
        )
    refuse_unmodelled(config)
    model, method, is_quantized = _builder(config)
    recipe = recipes.recipe_of(config, method, num_gpus)
    checkpointing = "full" if config.boolean("enable_activation_checkpointing", default=False) else "none"
    job: dict[str, Any] = {
        "layers_of": "torchtune",
        "loop": "plain",
        "method": method,
        "micro_batch_size": config.integer("batch_size", default=1),
        "gradient_accumulation_steps": config.integer("gradient_accumulation_steps", default=1),
        "dtype": _dtype(config),
        "autocast": "none",
        "optimizer": _optimizer(config),
        "checkpointing": checkpointing,
        "attention": "sdpa",
        **({"quantize": "nf4"} if is_quantized else {}),
        **savings.fields(config, recipe),
        **(recipes.preference_fields(config) if recipe.prefers else {"loss": _loss(config)}),
        "batches": "unpadded",
        **(recipes.sharded_fields(config, recipe, model, num_gpus) if recipe.shards else {"num_gpus": 1}),
    }
    if method == "lora":
        uses_dora = config.boolean("model.use_dora", default=False)
        if uses_dora and recipe.prefers:
            raise config.unsupported("model.use_dora", f"(DoRA) in {recipe.name} is not modelled yet")
        job |= _adapters(config) | {"lora_dtype": job["dtype"], "method": "dora" if uses_dora else "lora"}
    if config.has("tokenizer.max_seq_len"):
        job["sequence_length"] = config.integer("tokenizer.max_seq_len", default=1)
    packs = config.boolean("dataset.packed", default=False)
    if packs and not config.has("tokenizer.max_seq_len"):
        raise ConfigError(
            f"{config.source.where}: dataset.packed needs tokenizer.max_seq_len, torchtune stops without it"
        )
    if packs and not recipe.prefers:
        job["batches"] = "packed"
        gpu = config.source.gpu
        if gpu is not None and gpu.capability < FLEX_ATTENTION:
            config.note(
                "doubt",
                "dataset.packed",
                "gives rows a block mask, which flex_attention takes on GPUs from Turing on; here a mask and scores are"
                " kept, which is not counted",
            )
    if config.boolean("compile", default=False):
        config.note("warning", "compile", "compiled layers and losses keep less than is counted here")
    parsed = ParsedConfig(PACKAGE, f"{version} ({where})", model, job, NAMES, config.notes)
    parsed.task = "DPO" if recipe.prefers else parsed.task
    parsed.rows = "packed" if job["batches"] == "packed" else parsed.rows
    if model in OWN_POSITIONS:
        parsed.model_config = {"max_position_embeddings": OWN_POSITIONS[model]}
    return parsed


def _note_shipped(config: ConfigReader, version: str) -> None:
    """Say which file the settings are taken from."""
    name = config.string(configs.NAME)
    if name is not None:
        differs = "" if version == NEWEST else f"; that of {version} may differ: give the file itself (tune cp)"
        config.note("doubt" if differs else "default", "config", f"{name}, as torchtune {NEWEST} ships it{differs}")


def _builder(config: ConfigReader) -> tuple[str, str, bool]:
    """(model, method, whether its base is quantized) by the name of the function that builds it.

    Raises:
        ConfigError: if no builder is set.
        UnsupportedError: for a builder whose layers are not transformers'.
        UnknownNameError: for a builder that torchtune does not have.
    """
    path = config.string("model._component_")
    if path is None:
        raise ConfigError(f"{config.source.where}: model._component_ is not set; torchtune builds no model without it")
    name = path.rpartition(".")[2]
    bare = name.removeprefix("qlora_").removeprefix("lora_")
    if not path.startswith("torchtune.models.") or any(part in bare for part in UNMODELLED):
        raise config.unsupported(
            "model._component_", f"has layers of its own that are not modelled yet; use {setting('model')} and flags"
        )
    if bare not in MODELS:
        raise UnknownNameError("torchtune model", bare, MODELS, f"[{config.place('model._component_')}]")
    four = name.startswith("qlora_") or config.boolean("model.quantize_base", default=False)
    return MODELS[bare], "full" if name == bare else "lora", four


def _dtype(config: ConfigReader) -> str:
    """One dtype for weights, adapters, gradients and states; nothing is autocast."""
    given = config.lowercase("dtype", default="fp32")
    if DTYPES.get(given) not in ("bf16", "fp32"):
        raise config.invalid(("dtype",), "bf16 or fp32")
    if not config.has("dtype"):
        config.note("default", "dtype", "not set: fp32")
    return DTYPES[given]


def _optimizer(config: ConfigReader) -> str:
    path = config.string("optimizer._component_") or "torch.optim.AdamW"
    if path not in OPTIMIZERS:
        raise config.unsupported("optimizer._component_", f"is not modelled yet; modelled: {', '.join(OPTIMIZERS)}")
    if OPTIMIZERS[path] == "sgd" and config.number("optimizer.momentum", default=0.0) > 0:
        return "sgd_momentum"
    if path != "torch.optim.AdamW" or not config.has("optimizer.fused"):
        return OPTIMIZERS[path]
    # a value of `fused` leaves `foreach` off (torch 2.13, optim/adam.py: adam)
    return "adamw_torch_fused" if config.boolean("optimizer.fused", default=False) else "adamw_torch_loop"


def _loss(config: ConfigReader) -> str:
    path = config.string("loss._component_") or "torchtune.modules.loss.CEWithChunkedOutputLoss"
    if path not in LOSSES:
        raise config.unsupported("loss._component_", f"is not modelled yet; modelled: {', '.join(LOSSES)}")
    if config.integer("loss.num_output_chunks", default=8) != 8:
        raise config.unsupported("loss.num_output_chunks", "other than 8 is not modelled yet")
    return LOSSES[path]


def _adapters(config: ConfigReader) -> dict[str, Any]:
    attention = tuple(LAYERS.get(module, module) for module in config.strings("model.lora_attn_modules"))
    if not attention:
        raise UnsupportedError(f"{config.source.where}: model.lora_attn_modules is not set; torchtune needs it")
    mlp = MLP if config.boolean("model.apply_lora_to_mlp", default=False) else ()
    head = ("lm_head",) if config.boolean("model.apply_lora_to_output", default=False) else ()
    targets = (*attention, *mlp, *head)
    return {
        "lora_rank": config.integer("model.lora_rank", default=8),
        "lora_dropout": config.number("model.lora_dropout", default=0.0),
        "lora_targets": None if set(targets) == {*ATTENTION, *MLP} else targets,
    }


def write(model: str, job: Job) -> ConfigText:
    """Torchtune's YAML, without its tokenizer, data set and checkpoint.

    Raises:
        UnsupportedError: for a model that it does not build, or a job that its single-device recipes do not run.
    """
    for_torchtune = setting("for_framework", "torchtune")
    if job.num_gpus > 1:
        raise UnsupportedError(
            f"{for_torchtune}: {setting('num_gpus', job.num_gpus)}: only its single-device recipes are written"
        )
    refuse_unwritable("torchtune", job)
    if job.quantize != "none":
        raise UnsupportedError(
            f"{for_torchtune}: {setting('quantize', job.quantize)}: its quantized recipes run torchao's NF4, not"
            " bitsandbytes', and need other memory; check the command: tune run lora_finetune_single_device --config"
            " llama3_1/8B_qlora_single_device"
        )
    method = "full" if job.method == "full" else "lora"
    component = {name: path for path, name in OPTIMIZERS.items()}
    component |= dict.fromkeys(("adamw_torch_fused", "adamw_torch_loop"), "torch.optim.AdamW")
    component["sgd_momentum"] = "torch.optim.SGD"
    if job.optimizer not in component:
        raise UnsupportedError(f"{for_torchtune}: {setting('optimizer', job.optimizer)} is not one of its own")
    optimizer: Pairs = {"_component_": component[job.optimizer]}
    if job.optimizer in ("adamw_torch_fused", "adamw_torch_loop"):
        optimizer["fused"] = job.optimizer == "adamw_torch_fused"
    if job.optimizer == "sgd_momentum":
        optimizer["momentum"] = 0.9
    loss = "CrossEntropyLoss" if job.loss == "standard" else "CEWithChunkedOutputLoss"
    pairs: Pairs = {
        "model": {"_component_": _builder_path(model, method)} | (_adapter_pairs(job) if method == "lora" else {}),
        "tokenizer": {"max_seq_len": job.sequence_length},
        "dataset": {"packed": job.batches == "packed"},
        "batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "optimizer": optimizer,
        "loss": {"_component_": next(path for path in LOSSES if path.endswith(loss))},
        "enable_activation_checkpointing": job.checkpointing == "full",
        "enable_activation_offloading": False,
        "dtype": job.dtype,
        "compile": False,
    }
    command = f"tune run {method}_finetune_single_device --config train.yaml"
    return ConfigText(pairs, allocator_variables(job), command, file="train.yaml")


def _builder_path(model: str, method: str) -> str:
    spec = find_model(model)
    exact = [name for name, hub in MODELS.items() if hub == model]
    same_architecture = [name for name, hub in MODELS.items() if spec and spec.config == _published_config(hub)]
    for name in [*exact, *same_architecture][:1]:
        family = next(module for module in FAMILIES if name.startswith(f"{module}_"))
        return f"torchtune.models.{family}.{'lora_' if method == 'lora' else ''}{name}"
    raise UnsupportedError(
        f"{setting('for_framework', 'torchtune')}: it builds no {model}, or with layers that are not modelled yet"
    )


def _published_config(hub: str) -> Any:
    spec = find_model(hub)
    return spec and spec.config


def _adapter_pairs(job: Job) -> Pairs:
    names = {name: torchtune_name for torchtune_name, name in LAYERS.items()}
    targets = (*ATTENTION, *MLP) if job.lora_targets is None else job.lora_targets
    return {
        "lora_attn_modules": [names.get(layer, layer) for layer in targets if layer in ATTENTION],
        "apply_lora_to_mlp": any(layer in MLP for layer in targets),
        "apply_lora_to_output": "lm_head" in targets,
        "lora_rank": job.lora_rank,
        "lora_alpha": 2 * job.lora_rank,
        "lora_dropout": job.lora_dropout,
    }


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("tune", "run"),),
    marks=frozenset(
        {"checkpointer", "optimizer_in_bwd", "enable_activation_checkpointing", "tokenizer", "metric_logger"}
    ),
    in_sections=True,
    tells_tasks=True,
    split=command.split,
    overrides="hydra",
    writers=(Writer("torchtune", write),),
)
