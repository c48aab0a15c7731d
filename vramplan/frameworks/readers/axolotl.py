"""axolotl: ``axolotl train`` and its YAML (0.9 to 0.19; axolotl/utils/schemas, loaders/model.py)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least, hold_back, resolve_version
from vramplan.frameworks.readers import saved_adapters
from vramplan.frameworks.readers.axolotl_grpo import make_grpo
from vramplan.frameworks.readers.axolotl_rewards import REWARDS, is_reward, reward_fields
from vramplan.frameworks.readers.axolotl_tasks import TRL, read_task
from vramplan.frameworks.readers.saved_adapters import LoraKeys
from vramplan.frameworks.readers.trainer_arguments import (
    adapter_fields,
    attention_field,
    device_map_field,
    experts_field,
    extra_adapter_fields,
    lora_targets,
    num_launched_processes,
    read_checkpointing,
    reentrant_fields,
    trainer_fields,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers import nodes
from vramplan.frameworks.writers.config_text import ConfigText, Pairs, allocator_variables
from vramplan.frameworks.writers.trainer_based import ATTENTION_NAMES, dora_and_saved_modules, reentrant_kwargs
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import FUSED_KERNELS

PACKAGE, NEWEST = "axolotl", "0.19.0"
CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LIGER = "axolotl.integrations.liger.LigerPlugin"
FSDP_VERSION = 1
"""The default (utils/schemas/validation.py: check_fsdp_version_in_fsdp_config)."""
SAVED = LoraKeys("lora_model_dir", "lora_r", "lora_target_modules", "peft_use_dora", "lora_modules_to_save")
"""Its keys for adapters."""
NEW_ADAPTERS = ("dpo", "ipo", "kto")
"""Values of `rl` with which it loads no adapters: TRL makes new ones (loaders/model.py: _load_adapters)."""
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of an axolotl configuration."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    method = config.lowercase("adapter", default="full")
    if method not in ("full", "lora", "qlora"):
        raise config.unsupported("adapter")
    in_4bit = config.boolean("load_in_4bit", default=False)
    if in_4bit and method != "qlora":
        raise config.unsupported("load_in_4bit", "loads four bits with adapter: qlora alone; set one or the other")
    if method == "qlora" and not in_4bit:
        raise config.unsupported("adapter", "needs load_in_4bit: true")
    in_8bit = config.boolean("load_in_8bit", default=False)
    if in_8bit and method != "lora":
        raise config.unsupported("load_in_8bit", "goes with adapter: lora alone")
    if config.section("bnb_config_kwargs") is not None:
        raise config.unsupported("bnb_config_kwargs")
    method = "lora" if method == "qlora" else method
    job = trainer_fields(config, fsdp_version=FSDP_VERSION)
    config.notes = [note for note in config.notes if note.key == "fsdp" or note.kind != "default"]  # the Trainer's keys
    job |= {
        "method": method,
        "micro_batch_size": config.integer("micro_batch_size", default=1),
        "gradient_accumulation_steps": config.integer("gradient_accumulation_steps", default=1),
        "optimizer": config.lowercase("optimizer", default="adamw_torch_fused"),
        "checkpointing": _checkpointing(config),
        "sequence_length": config.integer("sequence_len", default=512),
    }
    for name, default in (("micro_batch_size", 1), ("sequence_len", 512)):
        if not config.has(name):
            config.note("default", name, f"not set: {default}")
    job |= experts_field(not at_least(version, "0.14"))  # its requirements: transformers 5.0
    _refuse_former_norm(config, version)
    job |= _dtypes(config) | ({"quantize": "nf4"} if in_4bit else {"quantize": "int8"} if in_8bit else {})
    job |= _adapters(config) if method == "lora" else {}
    job |= _engine_fields(config, job)
    job |= reentrant_fields(config, job, True)  # utils/config/__init__.py: normalize_config
    job |= _attention(config)
    if job.get("attention") == "flash" and job["dtype"] == "fp32":
        key = "flash_attention" if config.has("flash_attention") else "attn_implementation"
        raise ConfigError(f"{config.place(key)}: {key}: FlashAttention takes bf16 or fp16 alone; set bf16: true")
    job |= _loss(config)
    is_packed = config.boolean("sample_packing", default=False)
    job["batches"] = "packed" if is_packed else "padded" if job["micro_batch_size"] > 1 else "unpadded"
    is_padded = config.boolean("pad_to_sequence_len", default=is_packed) and not is_packed
    if is_padded:
        job["batches"] = "padded"
    if method == "full" and _keeps_fp32_embeddings(config, job):
        raise config.unsupported(
            "base_model",
            "trained whole without flash attention keeps fp32 embeddings and norms, which is not modelled yet; set"
            " attn_implementation: flash_attention_2, or deepspeed, which casts them",
        )
    if method == "full":
        job |= (
            {"vision": "train", "projector": "train"} if not config.boolean("freeze_mm_modules", default=False) else {}
        )
    image_size = config.strings("image_size")
    if image_size and all(side.isdigit() for side in image_size):
        job["image_size"] = (int(image_size[0]), int(image_size[-1]))
    job["num_gpus"] = num_launched_processes(config, num_gpus)
    job |= device_map_field(job)  # loaders/model.py: _set_device_map_config
    names: dict[str, KeyNames] = {
        "micro_batch_size": "micro_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "eval_batch_size": "eval_batch_size",
        "optimizer": "optimizer",
        "sequence_length": "sequence_len",
        "checkpointing": {"full": "gradient_checkpointing true"},
        "attention": {"sdpa": "attn_implementation sdpa", "flash": "attn_implementation flash_attention_2"},
        "loss": {
            "liger": f"plugins [{LIGER}]; liger_fused_linear_cross_entropy true",
            "cut": f"plugins [{CUT}]",
        },
        "dtype": {"bf16": "bf16 true"},
        "autocast": {"fp16": "bf16 false; fp16 true"},
        "strategy": {"zero3": "deepspeed deepspeed_configs/zero3_bf16.json"},
        "method": {"lora": "adapter lora; lora_r 8; lora_alpha 16; lora_target_linear true"},
        "quantize": {"nf4": "adapter qlora; load_in_4bit true"},
        "lora_dropout": "lora_dropout",
    }
    parsed = ParsedConfig(
        "axolotl", f"{version} ({where})", config.string("base_model") or "", job, names, config.notes
    )
    if not config.is_off("rl"):
        job |= read_task(config, version, parsed.model, job)
        parsed.task = config.lowercase("rl", default="").upper()
        if job["task"] == "dpo":
            names["reference"] = {"precomputed": "precompute_ref_log_probs true"}
        is_packed = is_padded = False
        names.pop("loss")
    if is_reward(config):
        job |= reward_fields(config, version, parsed.model, job)
        parsed.task = "reward model"
        is_packed = is_padded = False
        names.pop("loss")
    held_back = config.number("val_set_size", default=0.0)
    parsed.num_train_samples = hold_back(held_back)
    if held_back > 0 or config.has("test_datasets"):
        parsed.eval_batch_size = config.integer("eval_batch_size", default=job["micro_batch_size"])
    if job.get("task") == "grpo":
        make_grpo(parsed, config, TRL)
    parsed.expandable = True
    parsed.rows = "packed" if is_packed else "padded" if is_padded else "samples"
    parsed.drops_longer = config.lowercase("excess_length_strategy", default="drop") == "drop"
    return parsed


def _keeps_fp32_embeddings(config: ConfigReader, job: dict[str, Any]) -> bool:
    """Whether fp32 embeddings, head and norms stay (0.19, loaders/model.py: _configure_embedding_dtypes).

    They become the half precision again under flash attention and with cut cross-entropy; FSDP raises none, and
    DeepSpeed casts all of them. `embeddings_skip_upcast` is about models in four bits alone.
    """
    config.read_keys.add("embeddings_skip_upcast")
    sharded = job.get("strategy", "ddp") != "ddp"
    return job["dtype"] != "fp32" and job.get("attention") != "flash" and job.get("loss") != "cut" and not sharded


def _refuse_former_norm(config: ConfigReader, version: str) -> None:
    """Refuse flash-attn's own norms, at which axolotl 0.18 stops (utils/schemas/deprecated.py).

    Raises:
        ConfigError: if this version stops.
        UnsupportedError: if it takes them.
    """
    name = "flash_attn_rms_norm"
    if config.is_off(name):
        return
    if not at_least(version, "0.18"):
        raise config.unsupported(name)
    raise ConfigError(
        f"{config.place(name)}: {name}: axolotl stops at it since 0.18; leave it out by {setting('set', f'{name}=')}"
    )


def _dtypes(config: ConfigReader) -> dict[str, str]:
    """bf16: auto loads bf16 weights and runs bf16 autocast on every GPU since Ampere."""
    if config.boolean("fp16", default=False) or config.has("float16"):
        return {"dtype": "fp16", "autocast": "fp16"}
    bf16 = config.lowercase("bf16", default="auto")
    if bf16 in ("auto", "full") or config.boolean("bf16", "bfloat16", default=False):
        return {"dtype": "bf16", "autocast": "bf16"}
    return {"dtype": "fp32", "autocast": "none"}


BITSANDBYTES = ("adamw_8bit", "adamw_bnb_8bit")
"""Optimizers whose states FSDP 2 does not shard."""


def _engine_fields(config: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """Four bits are packed in bf16 (loaders/model.py); FSDP 2 has wrapping of its own (monkeypatch/accelerate)."""
    fields: dict[str, Any] = {}
    if job.get("quantize") == "nf4" and job.get("strategy") in ("fsdp", "zero3"):
        fields["quant_storage"] = "bf16"
    section = config.section("fsdp_config")
    if job.get("strategy") != "fsdp" or job["fsdp"]["version"] != 2:
        return fields
    if job["optimizer"] in BITSANDBYTES:  # utils/schemas/validation.py: check_fsdp2_w_8bit_optimizer
        raise ConfigError(f"{config.source.where}: optimizer: axolotl stops at {job['optimizer']} under FSDP 2")
    if section is not None:
        names = ("fsdp_cpu_ram_efficient_loading", "cpu_ram_efficient_loading")
        if section.boolean(*names, default=False) and job.get("quantize") == "nf4":
            raise ConfigError(f"{config.source.where}: {names[1]}: axolotl stops at it with load_in_4bit under FSDP 2")
        fields["fsdp"] = job["fsdp"] | {"wraps_embeddings": False}
    return fields


def _checkpointing(config: ConfigReader) -> str:
    mode = config.lowercase("gradient_checkpointing", "activation_checkpointing", default="false")
    if mode in ("offload", "offload_disk", "unsloth"):
        raise config.unsupported("gradient_checkpointing")
    return read_checkpointing(config)


def _adapters(config: ConfigReader) -> dict[str, Any]:
    goes_on = bool(saved_adapters.names(config, SAVED.folder))  # loaders/adapter.py: load_lora
    if goes_on and config.lowercase("rl", default="") in NEW_ADAPTERS:
        config.note("warning", SAVED.folder, "has no effect: with this rl axolotl gives TRL new adapters of lora_r")
        goes_on = False
    if not goes_on and not config.has("lora_r"):
        raise config.unsupported("lora_r", "is not set; axolotl needs it for adapter: lora")
    for name in KERNELS:
        if config.boolean(name, default=False):
            raise config.unsupported(name)
    if not any(config.has(name) for name in KERNELS):
        config.note(
            "warning",
            "lora_mlp_kernel",
            "axolotl may switch its fused adapter kernels on by itself: then it needs less",
        )
    half = {} if config.boolean("peft_autocast_adapter_dtype", default=True) else {"lora_dtype": "bf16"}
    if goes_on:
        config.read_keys.add("lora_target_linear")
        return saved_adapters.fields_of(config, SAVED) | half
    job = adapter_fields(config, "lora_r") | extra_adapter_fields(config, "peft_use_dora", "lora_modules_to_save")
    job |= half
    targets = lora_targets(config, "lora_target_modules")
    all_linear = config.boolean("lora_target_linear", default=False)
    if all_linear and {"lm_head", "embed_tokens"} & {*(targets or ())}:
        raise config.unsupported("lora_target_modules", "besides lora_target_linear is not modelled yet")
    if targets is not None and not all_linear:
        job["lora_targets"] = targets
    else:
        job |= {"vision": "lora", "projector": "lora"}  # axolotl does not exclude the vision tower
    return job


def _attention(config: ConfigReader) -> dict[str, str]:
    job = attention_field(config, "attn_implementation")
    if config.boolean("flash_attention", default=False):
        job = {"attention": "flash"}
    elif config.boolean("sdp_attention", default=False):
        job = {"attention": "sdpa"}
    elif config.boolean("eager_attention", default=False):
        job = {"attention": "eager"}
    return job


LIGER_KEYS = {
    "liger": ("liger_fused_linear_cross_entropy",),
    "liger_cross_entropy": ("liger_cross_entropy",),
    "rope": ("liger_rope",),
    "rms_norm": ("liger_rms_norm",),
    "layer_norm": ("liger_layer_norm",),
    "glu": ("liger_glu_activation", "liger_swiglu"),
}
"""Switches of axolotl's plugin for Liger, which are off if not set (integrations/liger/plugin.py)."""
KERNEL_SWITCHES = {"swiglu": "glu", "geglu": "glu"}


OTHER_PLUGINS = ("SwanLabPlugin", "LMEvalPlugin")
"""Plugins that log, or run when training is over."""


def _loss(config: ConfigReader) -> dict[str, Any]:
    plugins = " ".join(config.strings("plugins"))
    for name in config.strings("plugins"):
        if not any(part in name for part in ("CutCrossEntropy", "iger", *OTHER_PLUGINS)):
            raise config.unsupported(
                "plugins",
                f"has {name.rpartition('.')[2]}, which may bring a trainer or layers of its own and is not modelled;"
                " without it in the list the rest is estimated",
            )
    is_cut = "CutCrossEntropy" in plugins and config.boolean("cut_cross_entropy", default=True)
    switches = {name: config.boolean(*keys, default=False) for name, keys in LIGER_KEYS.items()}
    job: dict[str, Any] = {}
    if "iger" in plugins:
        kernels = tuple(name for name in FUSED_KERNELS if switches[KERNEL_SWITCHES.get(name, name)])
        job |= {"fused_kernels": kernels} if kernels else {}
        losses = [name for name in ("liger", "liger_cross_entropy") if switches[name]]
        job |= {"loss": losses[0]} if losses else {}
    return job | ({"loss": "cut"} if is_cut else {})


def _liger_pairs(job: Job) -> Pairs:
    """The switches of the plugin for Liger."""
    switches = [KERNEL_SWITCHES.get(name, name) for name in job.fused_kernels]
    keys = [LIGER_KEYS[name][0] for name in dict.fromkeys([job.loss, *switches]) if name in LIGER_KEYS]
    return {"plugins": [LIGER], **dict.fromkeys(keys, True)} if keys else {}


def write(model: str, job: Job) -> ConfigText:
    """Axolotl's YAML.

    Raises:
        UnsupportedError: for full fine-tuning in half precision without what keeps its embeddings in it.
    """
    is_half = job.method == "full" and job.dtype != "fp32" and job.strategy == "ddp"
    if is_half and job.attention != "flash" and job.loss != "cut":
        raise UnsupportedError(
            f"{setting('for_framework', PACKAGE)}: {setting('attention', job.attention)} with full fine-tuning leaves"
            f" embeddings and norms in fp32 there; give {setting('attention', 'flash')}"
        )
    pairs: Pairs = {"base_model": model}
    if job.method != "full":
        pairs["adapter"] = "qlora" if job.quantize == "nf4" else "lora"
        pairs |= {"load_in_4bit": True} if job.quantize == "nf4" else {}
        pairs |= {"load_in_8bit": True} | reentrant_kwargs(job) if job.quantize == "int8" else {}
        pairs |= dora_and_saved_modules(job, "peft_use_dora", "lora_modules_to_save")
        pairs |= {"lora_r": job.lora_rank, "lora_alpha": 2 * job.lora_rank, "lora_dropout": job.lora_dropout}
        all_linear = {"lora_target_linear": True}
        pairs |= all_linear if job.lora_targets is None else {"lora_target_modules": list(job.lora_targets)}
        pairs |= {} if job.lora_dtype == "fp32" else {"peft_autocast_adapter_dtype": False}
    pairs |= {
        "micro_batch_size": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "sequence_len": job.sequence_length,
        "optimizer": job.optimizer,
        "gradient_checkpointing": job.checkpointing == "full",
        "attn_implementation": ATTENTION_NAMES[job.attention],
        "bf16" if job.autocast != "fp16" else "fp16": job.dtype != "fp32" or job.autocast != "none",
    }
    if job.pictures and job.method == "full" and job.vision == "frozen":
        pairs["freeze_mm_modules"] = True
    pairs |= _liger_pairs(job)
    if job.loss == "cut":
        pairs["plugins"] = [CUT]
    if job.batches == "packed":
        pairs["sample_packing"] = True
    pairs |= _sharding(job)
    command = f"{nodes.accelerate_command(job)} -m axolotl.cli.train train.yaml"
    launcher, notes = nodes.accelerate(job), nodes.notes(job)
    return ConfigText(pairs, allocator_variables(job), command, file="train.yaml", launcher=launcher, notes=notes)


def _sharding(job: Job) -> Pairs:
    """FSDP with the version beside ``fsdp_config``, whose keys have no prefix."""
    pairs = sharding(job)
    if job.strategy != "fsdp":
        return pairs
    config = {name.removeprefix("fsdp_"): value for name, value in pairs["fsdp_config"].items()}
    config |= {"offload_params": True} if job.offload == "all" else {}
    return {"fsdp_version": config.pop("version"), "fsdp_config": config}


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("axolotl", "train"), ("axolotl.cli.train",), ("scripts/finetune.py",)),
    task_keys=("rl", *REWARDS),
    marks=frozenset(
        {"base_model", "sequence_len", "micro_batch_size", "adapter", "sample_packing", "lora_target_linear"}
    ),
    overrides="click",  # cli/utils/args.py
    valued_flags=("gradient_checkpointing",),
    expands_all_linear=True,
    writers=(Writer("axolotl", write, ENGINES),),
)
